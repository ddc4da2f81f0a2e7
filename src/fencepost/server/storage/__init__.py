"""Topics and partitions on disk, and the background tasks that maintain them.

topics.py, topic_config.py   the catalogue of topics, and the limit on their producers; the configs of a topic
partition.py, fetching.py    a partition, its watchers, the standstill; the partitions that a client fetches
validation.py                check the records of a batch before it is appended
syncer.py, space.py          one fsync for many requests; free disk space
store.py, datadir.py         everything but records, in SQLite; the data directory
housekeeping.py              retention, compaction, snapshots
"""
