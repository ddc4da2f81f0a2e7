"""Compaction: copy the segments of a log and keep the last record of each key."""
