"""The console: pages for people at `/` of the HTTP port.

The server renders whole pages; a stream of events brings the part of a page that changes (`streams.py`). A page has no
numbers of its own: it asks what `/api/v1` asks, so people, programs and the command line see the same, and the same
ACLs hold. `routes.py` lists the pages, and each page is a module of its own with a template.
"""
