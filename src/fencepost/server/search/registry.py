"""Values in Avro, by the schemas of a registry that the operator has named (`http.schema_registry`).

A value begins with a zero byte and the number of its schema (four bytes); the registry knows the schema by that number.
The registry's address never comes from a browser. Schemas are kept; a registry that does not answer is left alone for a
while, so a page of records waits for it once.
"""

from __future__ import annotations

import io
import json
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from time import monotonic
from typing import Any, Final, NamedTuple

_SECONDS: Final = 3.0
"""How long the registry may take for an answer."""
_AGAIN_SECONDS: Final = 10.0
"""How long a failure is remembered."""
_MOST_BYTES: Final = 1 << 20
"""Of an answer."""
_MOST_SCHEMAS: Final = 500
_MOST_VALUE: Final = 256 * 1024
"""Bytes of a value that is decoded."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The registry is where the operator says, not where somebody's answer points to."""

    def redirect_request(self, *_: Any) -> None:
        return None


class SchemaRegistry:
    """Decodes values. Threads may share it."""

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Any] = OrderedDict()
        """Parsed schemas by number, or the ValueError that decoding by them raises."""
        self._failed: dict[int | None, tuple[float, str]] = {}
        """When a schema, or with None the registry, can be asked for again, and why not before."""
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())

    def decode(self, number: int, data: bytes) -> Any:
        """Return a value; raise ValueError with one line that says why it cannot be decoded. Blocks."""
        try:
            import fastavro  # only for topics with Avro
        except ImportError:
            raise ValueError("the server needs the package fastavro: pip install 'fencepost[avro]'") from None
        schema = self._schema(number)
        if len(data) > _MOST_VALUE:
            raise ValueError(f"the value has more than {_MOST_VALUE} bytes")
        stream = io.BytesIO(data)
        try:
            value = fastavro.schemaless_reader(stream, schema, None)
        except Exception as error:  # noqa: BLE001  # the decoder meets bytes of strangers, and raises what it likes
            raise ValueError(f"the bytes do not fit schema {number}: {error or type(error).__name__}") from None
        if stream.tell() != len(data):
            raise ValueError(f"the bytes do not fit schema {number}: {len(data) - stream.tell()} are left over")
        return value

    def _schema(self, number: int) -> Any:
        with self._lock:
            known = self._known.get(number)
            if known is None:
                known = self._fetched(number)
                self._known[number] = known
                if len(self._known) > _MOST_SCHEMAS:
                    self._known.popitem(last=False)
        if isinstance(known, ValueError):
            raise ValueError(str(known))
        return known

    def _fetched(self, number: int) -> Any:
        for which in (None, number):
            again_at, why = self._failed.get(which, (0.0, ""))
            if monotonic() < again_at:
                raise ValueError(why)
        try:
            with self._opener.open(f"{self._address}/schemas/ids/{number}", timeout=_SECONDS) as answer:
                text = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise self._failure(number, f"the registry answers {error.code} for schema {number}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise self._failure(None, f"the registry cannot be asked for schema {number}: {reason}") from None
        if len(text) > _MOST_BYTES:
            return ValueError(f"schema {number} has more than {_MOST_BYTES} bytes")
        return _parsed(number, text)

    def _failure(self, which: int | None, why: str) -> ValueError:
        if len(self._failed) > _MOST_SCHEMAS:
            self._failed.clear()
        self._failed[which] = monotonic() + _AGAIN_SECONDS, why
        return ValueError(why)


def _parsed(number: int, text: bytes) -> Any:
    """Return the schema, or a ValueError that says why there is none."""
    import fastavro

    try:
        answer = json.loads(text)
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            return ValueError(f"schema {number} is of the type {str(kind)[:20]}, not AVRO")
        if answer.get("references"):
            return ValueError(f"schema {number} refers to other schemas, which is not supported")
        schema = json.loads(answer["schema"])
        parsed = fastavro.parse_schema(schema)
        check_schema(parsed)
    except Exception as error:  # noqa: BLE001  # the parser raises what it likes
        return ValueError(f"schema {number} cannot be used: {error or type(error).__name__}")
    return parsed


# -- safe schemas -----------------------------------------------------------------------------------------------------
#
# A decoder trusts the counts in the data. An array of items without bytes can have 2⁶³ of them in ten bytes, and a
# schema that contains itself can be nested as deep as the data is long: both would stop the server.

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
