"""The HTTP API, version 1: the server's state as JSON, read-only.

routes.py    the table of routes, from which the pages and the OpenAPI description are made
topics.py, groups.py, owners.py, sinks.py, security.py, others.py    the answers; rows (`core/rows.py`)
                   of what the Kafka APIs' handlers say
asking.py    calls of those handlers, in the name of an HTTP client
paging.py    long lists in pages
openapi.py   the description, and JSON schemas of the types
"""
