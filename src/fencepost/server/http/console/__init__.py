"""The console: pages for people at `/` of the HTTP port.

The server renders whole pages; a stream of events brings the part of a page that changes. A page has no numbers of its
own: it asks `server/views`, as `/api/v1` does, so people, programs and the command line see the same, and the same ACLs
hold.

routes.py      the table of pages, and the answers to browsers
page.py        the pieces of which every page consists
rendering.py   templates to HTML; numbers, sizes and times as a person reads them
assets.py      style sheet, scripts and libraries
streams.py     the changing part of a page, as server-sent events
history.py     the last hour in steps, for the charts

Each page is a module with a template of its own:

overview.py    rates, lag, disk and memory
attention.py   sentences about what needs a person
topics.py      topics, their configs and partitions
records.py     the record browser
producers.py, transactions.py    producers with H(P); open transactions, and the cure of one that hangs
owners.py      owners, waiting claims and take-overs
groups.py, group_reset.py    groups, their lag, and resets of their offsets
sinks.py       Spark's sinks, their steps and zombies
security.py    users, ACLs, quotas and the audit trail
"""
