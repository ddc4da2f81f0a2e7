"""Kafka's wire protocol without I/O: frames, headers and messages; bytes in, values out, and back.

- `apis`: which APIs there are: key, Kafka's name, versions, where flexible encoding begins
- `primitives`: varints, strings, byte strings and tagged fields, shared by everything below
- `frame`: length prefixes, request and response headers
- `codec`: readers and writers made from the fields of kio's message classes (`codec_fields`, `codec_reading`,
  `codec_writing`; `kio_types`: its first import)
- `messages`: any message by (key, version), the classes loaded when first needed
- `hot`: Produce and Fetch packed by hand, record bytes left where they are
- `own`: the one message that is not Kafka's
"""
