"""Transactions: the coordinator's requests, writers that share a transaction, and topics that hold its progress.

coordinator.py       init, add partitions, add offsets, end, describe
shared_writer.py     record batches into a transaction, each exactly once; the first ones in one request
compacted_topic.py   a topic that only transactions of one transactional id write
progress_topic.py    a sink's progress in such a topic
stage_topic.py       the topic in which the content of large micro-batches waits
targets.py           settings and limits of a micro-batch's target topics
micro_batch.py       carries out the steps that `core/micro_batch.py` decides
"""
