"""Compaction: copy the segments of a log and keep the last record of each key.

job.py         the work, in three steps, of which only a short one needs the log's owner
survivors.py   the rule: which records of a batch stay
rewriting.py   a batch without some of its records
swap.py        exchange the originals for the copies, all or none
cleaned.py     how far the log is compacted
"""
