"""A check of values against the part of JSON Schema that our OpenAPI description uses. Anything else in it is an
error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
_KNOWN = {"type", "items", "properties", "required", "additionalProperties", "anyOf", "$ref", "description"}


def check(value: Any, schema: Mapping[str, Any], named: Mapping[str, Any], where: str = "$") -> None:
    """Raise AssertionError if the value does not have the form that the schema describes."""
    assert set(schema) <= _KNOWN, f"{where}: {schema}"
    if "$ref" in schema:
        check(value, named[schema["$ref"].removeprefix("#/components/schemas/")], named, where)
        return
    if "anyOf" in schema:
        assert any(_fits(value, each, named, where) for each in schema["anyOf"]), f"{where}: {value!r}"
        return
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    assert any(isinstance(value, _TYPES[each]) and (each == "boolean") == isinstance(value, bool) for each in types), (
        f"{where}: {value!r} is not {types}"
    )
    if isinstance(value, list):
        for number, item in enumerate(value):
            check(item, schema["items"], named, f"{where}[{number}]")
    if isinstance(value, dict):
        assert schema["additionalProperties"] is False
        assert set(value) == set(schema["properties"]) == set(schema["required"]), f"{where}: {sorted(value)}"
        for name, item in value.items():
            check(item, schema["properties"][name], named, f"{where}.{name}")


def _fits(value: Any, schema: Mapping[str, Any], named: Mapping[str, Any], where: str) -> bool:
    try:
        check(value, schema, named, where)
    except AssertionError:
        return False
    return True
