"""Groups, transactions, producer ids and owners: the state that coordinators keep in the store.

groups.py, group_memory.py, group_rows.py   groups, the limit on their memory, their rows in the store
transactions.py, transaction_rows.py        transactions and their rows in the store
markers.py                                  the markers that end a transaction in the logs
pids.py                                     producer ids, reserved in the store in blocks
owners.py, guards.py                        own; who may write or read a partition
takeovers.py                                the last take-overs, for people who look
"""
