"""Client quotas: which limit applies to a client, and how long it must wait: rules without I/O.

entities.py   whom a quota is for, the keys it can have, and filters
table.py      all quotas, and the one that applies to a client
bucket.py     the use of one quota
"""
