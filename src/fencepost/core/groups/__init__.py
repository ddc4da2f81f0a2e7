"""The rules of consumer groups: the classic protocol, the one of KIP-848, assignors and committed offsets.

classic.py, classic_messages.py   JoinGroup, SyncGroup, Heartbeat, LeaveGroup; their requests and answers
roster.py                         the members of a classic group, counted as they come and go
kip848.py, kip848_messages.py     ConsumerGroupHeartbeat; its requests and answers
assignors.py                      server-side assignment of partitions to members
assignment.py                     the assignment of a classic member, decoded
offsets.py                        the committed offsets of one group
resets.py                         where a reset moves the committed offsets
patterns.py                       regular expressions over topic names, matched in linear time
"""
