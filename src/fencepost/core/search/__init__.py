"""Searching the records of a topic: the form, JSON fields, and the tests that records must pass. Rules alone, no I/O.

- `form`: the parameters of a search, as a link has them.
- `json_path`: a field of a JSON value, and the comparison of values.
- `matching`: tests of batches and of their records.
"""
