"""The rules of one producer and partition: sequences, duplicates, batches in flight, aborted transactions.

sequence.py                the arithmetic of sequences, and where they wrap
dedup.py                   server: H(P), the last batches, and the verdict on a new one
faded.py                   server: producers that were idle for some minutes, in little memory
aborted.py                 server: the aborted transactions of a partition; client: the batches that a reader skips
pid.py                     client: requesting, bumping and losing a pid
inflight.py                client: order, retries and in-doubt batches of a partition
schedule.py                client: what is sent next, and when; who is next to a leader
window.py                  client: how many bytes may be in flight to a broker
sharing.py                 client: the division of a producer's memory among topics and partitions
transaction_partitions.py  client: the partitions of a transaction
recollection.py            client: the records behind a saved place in the log
"""
