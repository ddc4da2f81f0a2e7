"""The parts of the send thread: each is stepped by `client/produce/sender.py`, and none is touched by another thread.

common.py      what they all have: options, queues, metadata, brokers, errands
agenda.py      the time, and when the next thing is to be done
standing.py    as whom the producer writes, and in which transaction
placing.py     metadata; records find their partitions
naming.py      the pid and its epoch
collation.py   what is sent next, in one request per leader
enlisting.py   partitions are added to a transaction before they are written to
produce.py     a request, its answer, and what is in doubt
expiry.py      what has waited too long
reporting.py   what `stats` shows
settling.py    delivered, or failed with what is known of it
"""
