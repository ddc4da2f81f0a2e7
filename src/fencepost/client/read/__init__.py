"""Reading: fetches from all leaders at once, ranges of offsets from one, and single records.

fetcher.py   the reader's engine: fetches from all leaders, keeps a bounded amount ready
scan.py      the batches of an answer that a reader may see
ranges.py    the record batches of a range of offsets, and single records, as they are in the log
resending.py fetched batches as a producer would send them, for copies
"""
