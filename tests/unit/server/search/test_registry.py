"""Values in Avro by a registry's schemas: what is decoded, what is refused, and how often the registry is asked."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from fencepost.server.search.registry import SchemaRegistry, UnsafeSchema, check_schema
from tests.support.process import free_port
from tests.support.registry import framed, schema_registry

pytestmark = pytest.mark.unit

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": "string"}],
}
VALUE = {"id": 5, "city": "Köln"}


def _answer(schema: Any, **others: Any) -> dict[str, Any]:
    return {"schema": json.dumps(schema), **others}


def test_values_are_decoded_and_schemas_are_kept() -> None:
    with schema_registry({7: _answer(ORDER)}) as served:
        registry = SchemaRegistry(served.url + "/")
        data = framed(ORDER, 7, VALUE)[5:]
        assert [registry.decode(7, data) for _ in range(3)] == [VALUE] * 3
        assert served.asked == ["/schemas/ids/7"]


@pytest.mark.parametrize(
    ("answer", "data", "words"),
    [
        (_answer(ORDER), b"\x0a", "the bytes do not fit schema 1"),
        (_answer("string"), b"\x02ab", "1 are left over"),
        (_answer("string"), b"\x80\x80\x80\x80\x80\x80\x80\x01x", "the bytes do not fit schema 1"),
        (_answer("string"), b"x" * 300_000, "the value has more than"),
        (_answer({"type": "array", "items": "null"}), b"", "schema 1 cannot be used: the schema has an array"),
        (_answer("nonsense"), b"", "schema 1 cannot be used"),
        (_answer(ORDER, schemaType="PROTOBUF"), b"", "of the type PROTOBUF, not AVRO"),
        (_answer(ORDER, references=[{"name": "x"}]), b"", "refers to other schemas"),
        (b"<html>", b"", "schema 1 cannot be used"),
        (b"x" * (2 << 20), b"", "schema 1 has more than"),
        (None, b"", "the registry answers 404 for schema 1"),
    ],
)
def test_what_cannot_be_decoded_is_said_in_one_line(answer: Any, data: bytes, words: str) -> None:
    with schema_registry({} if answer is None else {1: answer}) as served:
        registry = SchemaRegistry(served.url)
        for _ in range(2):
            with pytest.raises(ValueError) as caught:
                registry.decode(1, data)
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)
        assert len(served.asked) == 1


def test_a_registry_that_is_away_is_asked_once_for_all_schemas() -> None:
    registry = SchemaRegistry(f"http://127.0.0.1:{free_port()}")
    reasons = set()
    for number in range(50):
        with pytest.raises(ValueError, match="the registry cannot be asked") as caught:
            registry.decode(number, b"")
        reasons.add(str(caught.value))
    assert len(reasons) == 1


def test_the_registry_leads_nowhere_else() -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    with schema_registry({1: _answer(ORDER)}) as elsewhere:

        class Redirecting(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", f"{elsewhere.url}/schemas/ids/1")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Redirecting) as server:
            serving = threading.Thread(target=server.handle_request)
            serving.start()
            with pytest.raises(ValueError, match="the registry answers 302"):
                SchemaRegistry(f"http://127.0.0.1:{server.server_port}").decode(1, b"")
            serving.join()
        assert elsewhere.asked == []


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
