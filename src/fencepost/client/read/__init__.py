"""Reading: fetches from all leaders at once, and ranges of offsets from one.

fetcher.py   the reader's engine: fetches from all leaders, keeps a bounded amount ready
scan.py      the batches of an answer that a reader may see
ranges.py    the record batches of a range of offsets, as they stand in the log
"""
