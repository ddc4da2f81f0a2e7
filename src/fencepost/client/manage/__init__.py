"""Administration behind `Admin`: groups, transactions, durable topics, and the values that it returns.

groups.py         consumer groups: members, lag, moving their offsets
transactions.py   open transactions, and ending one that holds up readers
lasting.py        topics of fencepost's own, with enough replicas to survive a broker
results.py        plain immutable values
"""
