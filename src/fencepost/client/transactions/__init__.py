"""Transactions: the coordinator's requests, writers that share one transaction, progress topics.

coordinator.py      init, add partitions, add offsets, end, describe
shared_writer.py    record batches into one partition of a transaction, each exactly once
micro_batch.py      carries out the steps that `core/micro_batch.py` decides
progress_topic.py   a sink's progress: one compacted partition that the sink alone writes
targets.py          what the target topics of a micro-batch allow
"""
