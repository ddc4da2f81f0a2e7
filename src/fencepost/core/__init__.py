"""Rules without I/O, threads or clocks: events in, decisions out.

producers/           sequences, duplicates, batches in flight, memory shares, aborted transactions
groups/              consumer groups: both protocols, assignors, committed offsets
security/            who a client is, and what it may do
quotas/              how much a client may use
own/                 who owns a resource, on both kinds of server
sequence.py          the arithmetic of sequences, and where they wrap
transactions.py      server: the states of a transaction and the legal transitions
micro_batch.py       Spark: the steps of a micro-batch, and where to resume after any of them failed
zombies.py           Spark: drivers and tasks that were replaced and still try to write
staging.py           Spark: which content of a micro-batch waits in the stage topic, and where
restoring.py         server: what jumps ahead when a backup is restored
fetch_sessions.py    server: which partitions a client reads, and which of them an answer contains
topic_name.py        server, client: which names a topic may have
broker_choice.py     client: which broker gets a request that any broker can answer, and when a second one does
offset_copy.py       migrate: the steps that copy a partition so that records keep their offsets
group_transfer.py    migrate: which committed offsets of a group are set on the target
search/              server: which records a search of the console finds
record_json.py       keys and values of records in JSON
rows.py              a row type per thing, for `Admin`, `--json`, the HTTP API and the console
redaction.py         removal of secrets from text and settings
repeats.py           a limit on log lines about things that keep happening
retrying.py          client: which records of a failed batch come again, and when one is given up
backoff.py           client: how long to wait before the next attempt
steps.py             the driver of generator protocols
"""
