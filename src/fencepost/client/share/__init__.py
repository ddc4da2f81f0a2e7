"""Readers that share topics: the membership in a group, positions, commits.

group.py, group_wire.py  a reader's place in its group: its thread and requests, and what a transaction asks of it
exclusive.py             what a group assigns, owned as well
places.py                where to start and stop: the offsets that a place means, and those that a group has committed
lookups.py               questions that run on short-lived threads while the reader goes on
committing.py            commits in order, whether the caller waits for them or not
"""
