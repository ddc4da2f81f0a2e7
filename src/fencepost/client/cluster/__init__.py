"""Reaching a cluster: settings, security, connections, metadata, and finding the broker to ask.

addresses.py, settings.py, security.py      addresses; timeouts; TLS and SASL
config_names.py                             the names that other clients use
handshake.py, sasl.py                       versions, authentication
sockets.py, connection.py, brokers.py       non-blocking: sockets in one selector, one broker, all brokers
metadata.py                                 checked answers; brokers, topics, partitions, leaders
blocking.py                                 blocking: the thread that asks drives such connections itself
routing.py                                  any broker, the controller, a leader, a coordinator
patience.py                                 wait for a server that is away
owner_connection.py                         what one connection owns on fencepost's server
thread_calls.py, interrupts.py              calls between threads; signal handlers that call a client
checks.py, closing.py, forking.py           argument checks; `with`; what a fork must not tear apart
"""
