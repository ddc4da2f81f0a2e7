"""A schema registry: a few schemas by number, and what was asked for."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Registry(NamedTuple):
    url: str
    asked: list[str]


@contextmanager
def schema_registry(answers: Mapping[int, Mapping[str, Any] | bytes]) -> Iterator[Registry]:
    """Serve these answers; bytes are sent as they are."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = answers.get(int(self.path.rpartition("/")[2]))
            body = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield Registry(f"http://127.0.0.1:{server.server_port}", asked)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def framed(schema: Any, number: int, value: Any) -> bytes:
    """Return a value in Avro, behind the number of its schema."""
    import fastavro

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()
