"""A check of Avro schemas: which are safe to decode with, whatever the bytes say.

A decoder trusts the counts in the data. An array of items without bytes can have 2⁶³ of them in ten bytes, and a schema
that contains itself can be nested as deep as the data is long: both would stop the server. Such schemas are refused.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

_DEEPEST: Final = 50
_MOST_PARTS: Final = 5000
"""Parts of a value, with one item of each array: records within records can have very many in a few bytes."""
_LEAST: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


class UnsafeSchema(ValueError):
    """The text says why values of this schema are not decoded."""


class _Measure(NamedTuple):
    least: int
    """Bytes of the shortest value."""
    parts: int
    """Steps of decoding one value."""


def check_schema(schema: Any) -> None:
    """Raise UnsafeSchema if some bytes would take very long to decode. The schema is one that a parser has accepted."""
    _measure({}, schema, 0)


def _measure(known: dict[str, _Measure | None], schema: Any, depth: int) -> _Measure:
    """Measure the values of a schema. `known` has the named types, None for those around this one."""
    if depth > _DEEPEST:
        raise UnsafeSchema(f"the schema is nested more than {_DEEPEST} deep")
    if isinstance(schema, str):
        return _named(known, schema)
    if isinstance(schema, list):
        each = [_measure(known, one, depth + 1) for one in schema]
        return _Measure(
            1 + min((one.least for one in each), default=0), 1 + max((one.parts for one in each), default=0)
        )
    if not isinstance(schema, dict):
        raise UnsafeSchema("the schema has an unknown type")
    kind, name = schema.get("type"), str(schema.get("name"))
    if kind in ("array", "map"):
        items = _measure(known, schema.get("items" if kind == "array" else "values"), depth + 1)
        if kind == "array" and items.least == 0:
            raise UnsafeSchema("the schema has an array whose items take no bytes")
        return _Measure(1, 1 + items.parts)
    if kind in ("record", "error"):
        known[name] = None
        least, parts = 0, 1
        for field in schema.get("fields", ()):
            found = _measure(known, field.get("type"), depth + 1)
            least, parts = least + found.least, parts + found.parts
            if parts > _MOST_PARTS:
                raise UnsafeSchema(f"a value of the schema has more than {_MOST_PARTS} parts")
        measured = known[name] = _Measure(least, parts)
        return measured
    if kind in ("enum", "fixed"):
        measured = known[name] = _Measure(1 if kind == "enum" else int(schema.get("size", 0)), 1)
        return measured
    return _measure(known, kind, depth + 1)


def _named(known: dict[str, _Measure | None], name: str) -> _Measure:
    if name in _LEAST:
        return _Measure(_LEAST[name], 1)
    if name not in known:
        raise UnsafeSchema(f"the schema uses the type {name[:100]!r} before it is defined")
    found = known[name]
    if found is None:
        raise UnsafeSchema(f"the schema's type {name[:100]!r} contains itself")
    return found
