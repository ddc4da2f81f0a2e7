"""The console: pages for people at `/` of the HTTP port.

The server renders whole pages; a stream of events brings the part of a page that changes. A page has no numbers of its
own: it asks `server/views`, as `/api/v1` does, so people, programs and the command line see the same, and the same ACLs
hold.

routes.py      the table of pages, the answers to browsers, logging in and out
page.py        the pieces of which every page consists, and its stream of server-sent events
rendering.py   templates to HTML; numbers, sizes and times as a person reads them
assets.py      style sheet, scripts and libraries

The pages, with their templates:

overview.py    rates, lag, disk and memory, the last hour as charts, and sentences about what needs a person
lists.py       topics, groups, owners and sinks; one topic, one group
records.py     the record browser
producers.py   producers with H(P); open transactions, and the cure of one that hangs
group_reset.py resets of a group's offsets
security.py    users, ACLs, quotas and the audit trail
"""
