"""The requests behind `Admin`, and the values that it returns.

offsets.py        partitions: offsets, producers, deletion of records
topics.py         topics and configs
groups.py         consumer groups: members, lag, resetting offsets
transactions.py   transactions, and aborting one that holds up readers
lasting.py        topics that fencepost creates, with enough replicas to survive a broker
results.py        plain immutable values
"""
