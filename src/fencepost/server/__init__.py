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
server.py, child.py                 starting a server in the foreground, in a thread or as a process
settings.py, listener_settings.py   its settings, and those of one listener
configuration.py, toml_lines.py     settings from flags, environment and file; the lines of mistakes
reloading.py                        apply a changed configuration to a running server
systemd.py                          readiness and signs of life for systemd
addresses.py                        HOST:PORT
health.py, reporting.py             background tasks that fail; log lines on stderr
log_events.py                       stable names for the lines of the log
stacks.py                           what every thread and task does, for a debug bundle
line_thread.py                      a thread that writes lines, so that the loop waits for none
counters.py                         what the server counts while it works
interpreter.py                      short garbage collections; short waits of threads for the interpreter's lock
descriptors.py                      the process's limit on open files
"""
