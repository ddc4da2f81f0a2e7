"""The embedded server: asyncio around `core`, `wire` and `log`.

net/            connections, frames, memory, and the router that finds the handler in `api/`
api/            one file per API key
storage/        topics, partitions, the metadata store, and background work on them
coordinators/   groups, transactions, producer ids, owners
broker.py       the state that handlers share; it holds all of the above
server.py, child.py, settings.py    starting a server in the foreground, in a thread or as a process; its settings
health.py, reporting.py             background tasks that fail; log lines on stderr
garbage.py                          short garbage collections, however many objects are alive
"""
