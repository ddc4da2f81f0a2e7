"""Logs on disk: segments of record batches, their indexes, snapshots and recovery.

partition.py                 the log of one partition: append, read, sync
config.py                    its settings, and which segments expire
segment.py, index.py         a segment: a file of batches, and the indexes of that file
reading.py                   finding batches by offset, and records by timestamp; counting committed records
handles.py                   shared by all logs of a server: open files, indexes in memory
snapshot.py, recovery.py     a log's state at one offset, and restoring it after a crash
snapshot_job.py              writing a snapshot, or linking a log as it is at one moment, for a backup
checking.py                  a check of every file, which trusts none
compaction/                  keep the last record of each key
files.py                     the file operations that the log uses, so that tests can make them fail
"""
