"""The embedded server: asyncio around `core`, `wire` and `log`.

net/            connections, frames, memory, and the router that finds the handler in `api/`
api/            one file per API key
storage/        topics, partitions, the store, and the chores
coordinators/   groups, transactions, producer ids, owners
broker.py       what the handlers ask; it holds all of the above
server.py, child.py, settings.py    in the foreground, in a thread or as a process; its settings
health.py, reporting.py             what the server could not do; lines on stderr
garbage.py                          short garbage collections, however many objects are alive
"""
