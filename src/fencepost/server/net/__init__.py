"""Connections: accept them, cut bytes into frames, bound memory, route requests to their handlers.

listener.py, connection.py, receiving.py   accept; answers in order; bytes into frames
request_memory.py, answer_memory.py        limits on the bytes of requests and of answers
allocator.py                               keep freed memory for the next request
router.py                                  the API registry: key, versions and handler of each API
turns.py                                   long work in pieces, with other connections in between
"""
