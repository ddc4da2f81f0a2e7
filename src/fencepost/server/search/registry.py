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
from typing import Any, Final

from fencepost.server.search.avro_schema import check_schema

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
