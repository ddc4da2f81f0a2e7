"""Exactly-once micro-batches: the steps that `core/micro_batch/protocol.py` decides, and the topics that they use.

runner.py    takes the steps of a micro-batch; its `Content` is what the caller knows
targets.py   settings and limits of a micro-batch's target topics
topics.py    a sink's own topics: its progress, and the stage, in which the content of large micro-batches waits
"""
