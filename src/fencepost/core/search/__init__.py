"""Searching the records of a topic: the form, JSON paths, and the tests that records must pass. Rules alone, no I/O.

- `form`: the parameters of a search, as a link has them.
- `json_path`: a small part of JSONPath, and the comparison of values.
- `matching`: tests of whole columns of keys, values and headers, without work per record that does not match.
- `pace`: how long a search rests, so that it does not slow down producers.
"""
