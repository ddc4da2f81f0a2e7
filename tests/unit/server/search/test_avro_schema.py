"""Schemas by which a few bytes could keep the server busy for years."""

from __future__ import annotations

from typing import Any

import fastavro
import pytest

from fencepost.server.search.registry import UnsafeSchema, check_schema

pytestmark = pytest.mark.unit


def _record(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{at}", "type": of} for at, of in enumerate(types)]}


def _doubling(depth: int) -> dict[str, Any]:
    """A record that has two of the next one, which has two of the next one, and nothing in the end."""
    schema = _record("R0", "null")
    for number in range(1, depth):
        schema = _record(f"R{number}", schema, f"R{number - 1}")
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        {"type": "array", "items": "string"},
        {"type": "array", "items": {"type": "array", "items": "null"} | {"items": "long"}},
        {"type": "map", "values": "null"},
        {"type": "array", "items": ["null", "string"]},
        {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        _record("A", "long", _record("B", "int"), "B", {"type": "enum", "name": "E", "symbols": ["X"]}, "E"),
        _record("A", {"type": "fixed", "name": "F", "size": 4}, {"type": "array", "items": "F"}),
    ],
)
def test_usual_schemas_are_safe(schema: Any) -> None:
    check_schema(fastavro.parse_schema(schema))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": "null"}, "items take no bytes"),
        ({"type": "array", "items": _record("E")}, "items take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "items take no bytes"),
        ({"type": "map", "values": {"type": "array", "items": "null"}}, "items take no bytes"),
        (_record("R", ["null", "R"]), "contains itself"),
        (_doubling(40), "more than 5000 parts"),
    ],
)
def test_unsafe_schemas_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(UnsafeSchema, match=words):
        check_schema(fastavro.parse_schema(schema))


def test_a_schema_that_is_nested_very_deep_is_refused() -> None:
    schema: Any = "string"
    for _ in range(60):
        schema = {"type": "array", "items": schema}
    with pytest.raises(UnsafeSchema, match="nested more than 50 deep"):
        check_schema(schema)
