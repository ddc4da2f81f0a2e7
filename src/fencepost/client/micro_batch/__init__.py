"""Exactly-once micro-batches: the steps that `core/micro_batch/protocol.py` decides, and the topics that they use.

runner.py          carries out the steps of a micro-batch; its `Content` is what the caller knows
targets.py         settings and limits of a micro-batch's target topics
progress_topic.py  a sink's progress
stage_topic.py     the topic in which the content of large micro-batches waits
"""
