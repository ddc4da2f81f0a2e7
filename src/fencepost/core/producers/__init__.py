"""The rules of one producer and partition: sequences, duplicates, batches in flight, aborted transactions.

dedup.py             server: H(P), the last batches, and the verdict on a new one
aborted.py           server: the aborted transactions of a partition
pid.py               client: how a pid is asked for, bumped and lost
inflight.py          client: order, retries and doubt of a partition's batches
window.py            client: how many bytes are in flight to a broker
sharing.py           client: how a producer's memory is shared out to topics and partitions
enlist.py            client: which partitions a transaction has
recollection.py      client: what was written since ids were saved
read_committed.py    client: which batches a reader of committed records skips
"""
