"""Connections: accept them, cut bytes into frames, bound memory, route requests to their handlers.

listener.py, connection.py, receiving.py   accept; answers in order; bytes into frames
receive_buffer.py                          the buffer that the connections of one loop receive into
request_memory.py, answer_memory.py        limits on the bytes of requests and of answers
port.py                                    the socket of one named listener
tls.py                                     TLS: contexts, handshakes in threads, the transport
session.py                                 the listener and the principal of a connection
limits.py, pending.py                      limits on connections: per address and user; before authentication
throttle.py                                what the client uses of its quotas; muting
sockets.py                                 options of sockets
answer_place.py                            the place of a request in the line of its connection
router.py                                  the API registry: key, versions and handler of each API
turns.py                                   long work in pieces, with other connections in between
bystanders.py                              the turn of a connection, shorter while other clients wait
"""
