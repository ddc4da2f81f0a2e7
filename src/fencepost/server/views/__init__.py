"""The server's account of itself: its state, read once, and pages of rows (`core/rows.py`) of what a caller may see.

The HTTP API, the console and the metrics are skins over it, and each number has one function here, so that they agree.

snapshot.py       the state as it was a moment ago, shared by everybody who looks
topics.py         the cluster, topics, partitions, producers
groups.py         consumer groups, committed offsets, lags
record_lag.py     the lag of groups in records, counted in a thread
transactions.py   transactional ids, and open transactions in the logs
owners.py         owners of resources, waiting claims, take-overs
sinks.py          the last committed micro-batches of each sink
security.py       users, ACLs, quotas
asking.py         calls of the Kafka APIs' handlers, in the name of a caller, whose ACLs they check
paging.py         long lists in pages
"""
