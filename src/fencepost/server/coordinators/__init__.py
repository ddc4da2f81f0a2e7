"""Groups, transactions, producer ids and owners: the state that coordinators keep in the store.

groups.py, group_memory.py, group_rows.py   consumer groups, the bytes that they take, their rows
transactions.py, transaction_rows.py        transactions and their rows
markers.py                                  a transaction's end in the logs
pids.py                                     producer ids, taken from the store in blocks
owners.py, guards.py                        own; who may write or read a partition
"""
