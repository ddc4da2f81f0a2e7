"""Reading: fetches from all leaders at once, ranges of offsets from one, and single records.

fetcher.py   the reader's engine: fetches from all leaders, keeps a bounded amount ready
places.py    where to start and stop: the offsets that a place means, and those that a group has committed
lookups.py   questions that run on short-lived threads while the reader goes on
committing.py commits in order, whether the caller waits for them or not
group.py     a reader's place in its group: its thread, and what a transactional consumer asks of it
group_wire.py a member's requests on the wire
exclusive.py what a group assigns, owned as well
scan.py      the batches of an answer that a reader may see
ranges.py    the record batches of a range of offsets, as they stand in the log
resending.py fetched batches as a producer would send them, for copies
picked.py    single large records by their offsets
"""
