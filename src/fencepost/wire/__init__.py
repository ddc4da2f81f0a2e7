"""Kafka's wire protocol without I/O: frames, headers and messages; bytes in, values out, and back.

apis.py        which APIs there are: key, Kafka's name, versions, where flexible encoding begins
primitives.py  varints, strings, byte strings and tagged fields, shared by everything below
frame.py       length prefixes, request and response headers
codec.py       readers and writers made from the fields of kio's generated message classes
messages.py    any message by (key, version), the classes loaded when first needed
hot.py         Produce and Fetch packed by hand, record bytes left where they are
own.py         the one message that is not Kafka's
"""
