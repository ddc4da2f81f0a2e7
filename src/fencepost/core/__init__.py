"""Rules without I/O, threads or clocks: events in, decisions out.

sequence.py          the numbers: next, distance, and where they wrap
dedup.py             server: H(P), the last batches, what a batch is judged to be
aborted.py           server: the aborted transactions of a partition
transactions.py      server: the states of a transaction, and who may go where
groups.py, group_messages.py                       server: a consumer group of the classic protocol
consumer_group.py, consumer_group_messages.py, assignors.py    server: one of the new protocol
topic_name.py        server, client: which names a topic may have
topic_pattern.py     server: regular expressions over topic names, which no pattern makes slow
repeats.py           which of many log lines of the same kind are written
offsets.py           server: the committed offsets of a group
fetch_sessions.py    server: what a client reads and was told; which partitions an answer has
ownership.py         server: own, as compare-and-set on a generation
pid.py, inflight.py  client: who a producer is; order, retry and doubt of a partition's batches
window.py            client: how much is under way to a broker
sharing.py           client: how a producer's memory is shared out to topics and partitions
replication.py       client: how often a topic of fencepost's own is replicated, and which is too weak
notices.py           client: when to tell of what happens again and again
broker_choice.py     client: which broker is asked what any can answer, and when a second one is
recollection.py      client: what was written since ids were saved, by the log and by H(P)
enlist.py            client: which partitions a transaction has
committed.py         client: which batches a reader of committed records leaves out
claim.py             client: what own is asked for, on both roads
claim_steps.py, owner_records.py, claim_line.py    client: own on Apache Kafka, its steps, its judgement, who is next
commit.py            Spark: the steps of a micro-batch, and where to go on after any of them failed
"""
