"""Transactions: the coordinator's requests, writers that share a transaction, and topics that only transactions write.

coordinator.py       init, add partitions, add offsets, end, describe
shared_writer.py     record batches into a transaction, each exactly once; the first ones in one request
compacted_topic.py   a topic that only transactions of one transactional id write
"""
