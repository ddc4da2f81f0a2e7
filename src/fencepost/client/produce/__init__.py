"""The producer's parts: queues that callers fill, and the send thread that empties them.

options.py, stats.py             what a producer can be told, and what it tells
queues.py, partition_queue.py    the queues between the caller's threads and the send thread
filling.py, waiting_room.py      records into batches; records that cannot be put into a batch yet
record_size.py, table.py         the size of a record before it is encoded; whole Arrow tables
ticket.py, failures.py           what `send` returns; failures that nobody has looked at
sender.py                        the send thread, which steps these parts:
    common.py, standing.py       what they share; the producer's identity and open transaction
    agenda.py                    the time, and when the next thing is due
    placing.py, naming.py        metadata and partitions; pid and epoch
    collation.py, request.py     what is sent next; one Produce request and its answer
    enlisting.py, lanes.py       partitions of a transaction; an owner's transactions on Apache Kafka
    expiry.py, settling.py       what has waited too long; delivered or failed
    reporting.py                 what `stats` shows
lookback.py, aftermath.py        read the log to settle batches in doubt
ids.py, resume.py                saved ids, and resuming from them
transaction.py                   a transaction as the caller's thread sees it
unclosed.py                      producers that nobody closed
"""
