"""The embedded server: asyncio around `core`, `wire` and `log`.

`listener` accepts connections, `receiving` cuts frames, `connection` keeps answers in order, `router` finds the handler
in `api/`, the handlers ask the `broker`, which holds the catalogue of topics, the open partitions and the store.

    server.py, child.py, settings.py      in the foreground, in a thread or as a process; what it can be told
    listener.py, connection.py, receiving.py, allocator.py    clients
    memory.py, answer_memory.py           what their requests and answers may take
    fetching.py                           what one client reads, and reading it for an answer
    router.py, api/                       from an API key to its handler, a file each
    reporting.py                          lines on stderr, which nobody waits for
    turns.py                              long work in pieces, with other connections in between
    broker.py, datadir.py, clock.py       what the handlers ask; where it lies; the time
    topics.py, topic_config.py, partition.py    the catalogue, and partitions with who waits for them
    syncer.py, space.py, validation.py    one fsync for many requests; room on the disk; is a batch sound?
    store.py, group_rows.py, transaction_rows.py    what is not records: SQLite, and how things lie in it
    groups.py, group_memory.py            the coordinator of groups, and what they may take
    transactions.py, markers.py           the coordinator of transactions; markers in the logs
    pids.py, producer_limit.py            producer ids, and how many producers are remembered
    owners.py, guards.py                  own, and who may write or read what
    housekeeping.py, health.py            retention, compaction and snapshots, when nobody asks; what of that fails
"""
