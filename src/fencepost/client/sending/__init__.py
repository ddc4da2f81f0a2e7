"""The parts of the send thread: each is stepped by `client/sender.py`, and none is touched by another thread."""
