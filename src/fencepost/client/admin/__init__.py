"""The requests behind `Admin`, and the values that it returns.

offsets.py        partitions: offsets, producers, deletion of records
topics.py         topics and configs
groups.py         consumer groups: members, lag, resetting offsets
users.py          users: SCRAM credentials
quotas.py         quotas of users, client ids and addresses
acls.py           ACLs, and the operations that a client may perform
transactions.py   transactions, and aborting one that holds up readers
lasting.py        topics that fencepost creates, with enough replicas to survive a broker
results.py        plain immutable values, beside those of `core/rows.py`
"""
