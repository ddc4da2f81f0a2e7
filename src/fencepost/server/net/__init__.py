"""Connections: accept them, cut bytes into frames, bound memory, route requests to their handlers.

listener.py, connection.py, receiving.py   ports, accept; answers in order; bytes into frames
request_memory.py, answer_memory.py        limits on the bytes of requests and of answers
tls.py                                     TLS: contexts, handshakes in threads, the transport
session.py                                 the listener and the principal of a connection
limits.py                                  limits on connections: per address and user; before authentication
throttle.py                                what the client uses of its quotas; muting
router.py                                  the API registry: key, versions and handler of each API
turns.py                                   long work in pieces, with other connections in between
"""
