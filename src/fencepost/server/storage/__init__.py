"""Topics and partitions on the disk, and the chores that keep them in shape.

topics.py, topic_config.py   the catalogue, and the configs of a topic
partition.py, fetching.py    a partition with the requests that wait for it; reading for one answer
validation.py                check the records of a batch before it is appended
syncer.py, space.py          one fsync for many requests; room on the disk
store.py, datadir.py         everything but records, in SQLite; the data directory
housekeeping.py              retention, compaction, snapshots
producer_limit.py            how many producers are remembered
"""
