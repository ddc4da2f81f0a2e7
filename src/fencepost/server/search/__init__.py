"""The record browser's searches through the logs.

- `scanning`: a piece of a search, in a thread: whole batches, straight from the files.
- `searching`: a search: its ranges, how far it has come, following the log's end.
- `showing`: records as a person reads them.
"""
