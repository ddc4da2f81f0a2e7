"""What the server tells of itself, read from its state on the loop. Each number has one function here, so that the
metrics, the HTTP API and the console agree.

partitions.py   partitions and topics: offsets, sizes, what was written
groups.py       committed offsets and the lags of groups
record_lag.py   the lag of groups in records, counted in a thread
sinks.py        the last committed micro-batches of each sink
"""
