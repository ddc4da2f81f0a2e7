"""Compaction: copy the segments of a log and keep the last record of each key.

job.py         one pass, in three steps; only a short one needs the log's owner
survivors.py   the rule: which records of a batch to keep, and the batch without the others
swap.py        replace the original segments with the copies, all or none; the offsets up to which the log is compacted
"""
