"""The rules of consumer groups: the classic protocol, the one of KIP-848, assignors and committed offsets.

classic.py, classic_messages.py   JoinGroup, SyncGroup, Heartbeat, LeaveGroup; their requests, answers and members
membership.py                     the client's side: one reader's membership in its group
consumer_member.py                … as a member of the new protocol
classic_member.py                 … as a classic member
subscription.py                   subscriptions and assignments in bytes; how a classic leader divides the partitions
holding.py                        … and what it holds, in the order in which the program hears of it
kip848.py, kip848_messages.py     ConsumerGroupHeartbeat; its requests and answers
migration.py                      how a group with members changes between the two protocols
assignors.py                      server-side assignment of partitions to members
offsets.py                        the committed offsets of one group
resets.py                         where a reset moves the committed offsets
patterns.py                       regular expressions over topic names, matched in linear time
"""
