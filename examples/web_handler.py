"""A web handler that produces: asyncio, one producer for all requests, a response when the record is stored.

    python examples/web_handler.py 127.0.0.1:9092 8080
    curl -i --data-binary 'two apples' http://127.0.0.1:8080/orders

`send` never blocks, so a handler may call it directly; awaiting the ticket waits for the acknowledgement without a
thread. Concurrent requests share a batch. With a framework (aiohttp, FastAPI, Starlette) put the same two lines into
the handler, and the `async with` into its lifespan.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from http import HTTPStatus

import fencepost

DELIVERY_TIMEOUT = 5.0
"""In seconds; clients of a web server do not wait longer."""


async def answer(producer: fencepost.AsyncProducer, method: str, path: str, body: bytes) -> tuple[HTTPStatus, object]:
    """Handle POST /TOPIC with the value as its body."""
    if method != "POST" or not path.strip("/"):
        return HTTPStatus.NOT_FOUND, {"error": "POST /TOPIC with the value as its body"}
    try:
        delivered = await producer.send(path.strip("/"), body)
    except fencepost.SendFailed as error:  # says whether the record is in the log nevertheless
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error), "persisted": error.persisted}
    except ValueError as error:  # an invalid topic name: the client's mistake
        return HTTPStatus.BAD_REQUEST, {"error": str(error), "persisted": "no"}
    except fencepost.RecordTooLarge as error:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": str(error), "persisted": "no"}
    except fencepost.BufferFull as error:  # records arrive faster than the server accepts them: the client may retry
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error), "persisted": "no"}
    return HTTPStatus.CREATED, {"partition": delivered.partition, "offset": delivered.offset}


async def handle(producer: fencepost.AsyncProducer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handle one request per connection, with enough of HTTP for an example."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        status, found = await answer(producer, method, path, body)
        text = json.dumps(found).encode()
        writer.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
            % (status, status.phrase.encode(), len(text), text)
        )
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass  # the client hung up, or does not speak HTTP
    finally:
        writer.close()


async def main(servers: str, port: int) -> None:
    async with fencepost.AsyncProducer(
        servers, delivery_timeout=DELIVERY_TIMEOUT, request_timeout=DELIVERY_TIMEOUT / 2
    ) as producer:  # closing waits until everything is stored
        server = await asyncio.start_server(lambda r, w: handle(producer, r, w), "127.0.0.1", port)
        print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        async with server:
            await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/web_handler.py SERVERS PORT, for example 127.0.0.1:9092 8080")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
