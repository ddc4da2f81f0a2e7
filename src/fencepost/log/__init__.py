"""Logs on disk: segments of record batches, their indexes, snapshots and recovery.

partition.py                 the log of one partition: append, read, sync      config.py   its settings
segment.py, index.py         a segment: a file of batches, and the indexes of that file
reading.py                   finding batches by offset, and records by timestamp
counting.py                  counting committed records between two offsets
handles.py                   shared by all logs of a server: open files, indexes in memory
snapshot.py, snapshot_job.py, recovery.py    a log's state at one offset, writing it, and restoring it after a crash
pin_job.py                   linking a log as it is at one moment, for a backup
checking.py                  a check of every file, which trusts none
retention.py                 the segments that are too old or too many
compaction/                  keep the last record of each key
files.py                     the file operations that the log uses, so that tests can make them fail
"""
