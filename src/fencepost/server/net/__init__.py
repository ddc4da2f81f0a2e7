"""Connections: accept them, cut bytes into frames, bound memory, route requests to their handlers.

listener.py, connection.py, receiving.py   accept; answers in order; bytes into frames
request_memory.py, answer_memory.py        the bytes that requests and answers may take
allocator.py                               keep freed memory for the next request
router.py                                  from an API key to its handler
turns.py                                   long work in pieces, with other connections in between
"""
