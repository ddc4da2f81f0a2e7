"""The producer's parts: queues that callers fill, and the send thread that empties them.

options.py, stats.py             a producer's settings; the values of `stats`
ticket.py                        what `send` returns; failures that nobody has asked for
queues.py, partition_queue.py    the queues between the caller's threads and the send thread, and their parts
routing.py                       divides batches of a new topic among its partitions
waiting_room.py, table.py        records that are to be serialized; whole Arrow tables
send_thread.py                   the thread, and producers that nobody closed
sender.py                        one turn of the send thread, by these parts:
    state.py                     what they share: time, identity, open transaction, connections
    placing.py, identity.py      metadata and partitions; pid and epoch
    dispatch.py                  carries out what the schedule decides (`core/producers/schedule.py`)
    requests.py                  Produce requests and their answers
    settling.py                  batches are delivered or fail, and expire
    transaction.py, lanes.py     the caller's transactions; an owner's transactions on Apache Kafka
    doubt.py                     reads the log to settle batches in doubt
    reporting.py, rare_lines.py  collects the stats; log lines that would come too often
ids.py, ids_topic.py             saved ids, and the topic for what they do not name
resume.py                        resuming: open each partition before its first record
"""
