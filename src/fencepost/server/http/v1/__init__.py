"""The HTTP API, version 1: the server's state as JSON, read-only. `server/views` makes the answers.

routes.py    the table of routes, from which the pages and the OpenAPI description are made
openapi.py   the description, and JSON schemas of the rows
"""
