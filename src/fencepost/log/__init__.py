"""What is on the disk: segmented logs of record batches, their indexes, snapshots and recovery.

partition.py                 the log of one partition: append, read, sync      config.py   its settings
segment.py, index.py         a stretch of it: a file of batches, and the indexes of that file
reading.py, times.py         from an offset, and from a time, to bytes
handles.py, index_cache.py   what all logs of a server share: open files, indexes in memory
snapshot.py, snapshot_job.py, recovery.py    where to begin after a crash, and how
retention.py                 which segments are too old or too many
compaction/                  keep the last record of each key
files.py                     the few file operations all of it is made of, so that tests can fail them
"""
