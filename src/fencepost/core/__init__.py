"""Rules without I/O, threads or clocks: events in, decisions out.

producers/           sequences, duplicates, batches in flight, memory shares, aborted transactions
groups/              consumer groups: both protocols, assignors, committed offsets
security/            who a client is, and what it may do
quotas.py            how much a client may use
own/                 who owns a resource, on both kinds of server
search/              which records a search of the console finds
micro_batch/         the steps of a micro-batch, what waits in its stage topic, and replaced drivers that still write
transactions.py      server: the states of a transaction and the legal transitions
restoring.py         server: what jumps ahead when a backup is restored
fetch_sessions.py    server: which partitions a client reads, and which of them an answer contains
broker_choice.py     client: which broker gets a request that any broker can answer, and when a second one does
migration.py         migrate: the steps of a copy that keeps offsets; which offsets of groups are set
rows.py              a row type per thing, for `Admin`, `--json`, the HTTP API and the console
redaction.py         removal of secrets from text and settings
repeats.py           limits on log lines and audit lines about things that keep happening
retrying.py          client: the pause before the next attempt; which records of a failed batch come again
steps.py             the driver of generator protocols
"""
