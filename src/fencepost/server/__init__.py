"""The embedded server: asyncio around `core`, `wire` and `log`.

net/            connections, frames, memory, and the router that finds the handler in `api/`
api/            one file per API key
storage/        topics, partitions, the metadata store, and background work on them
coordinators/   groups, transactions, producer ids, owners
security/       logins, users, ACLs and the audit log
views/          the numbers of partitions and groups that metrics, HTTP API and console show
metrics/        the server's state at one moment, and as Prometheus reads it
backup/         backups of a running server, restoring and checking a data directory
http/           the HTTP port: health, readiness, metrics, the state as JSON, the console
search/         searches through records, for the console
broker.py       the state that handlers share; it holds all of the above
config/         settings, where they come from, and changing them while the server runs
process/        the server as a process: its start as a child, its log, limits, stacks, systemd
server.py       starting a server in the foreground, in a thread or as a process
health.py       background tasks that fail
counters.py     what the server counts while it works
"""
