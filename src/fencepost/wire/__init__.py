"""Kafka's wire protocol without I/O: frames, headers and messages, from bytes to values and back.

- `apis`: the APIs: key, Kafka's name, versions, the first flexible version
- `primitives`: varints, strings, byte strings and tagged fields, shared by the modules below
- `frame`: length prefixes, request and response headers
- `codec`: readers and writers, built from the fields of kio's message classes
- `messages`: any message by (key, version); classes are loaded on first use
- `hot`: Produce and Fetch packed by hand, without copying the records
- `own`: the messages that are fencepost's own
"""
