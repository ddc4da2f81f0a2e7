"""The HTTP API, version 1: the server's state as JSON, read-only.

routes.py    the table of routes, from which the pages and the OpenAPI description are made
views.py     the answers: pages of rows (`core/rows.py`), of what the caller may see
asking.py    calls of the Kafka APIs' handlers, in the name of an HTTP client
paging.py    long lists in pages
openapi.py   the description, and JSON schemas of the rows
"""
