"""`fencepost produce`: lines or files into a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from fencepost.cli.options import Target, client_command
from fencepost.cli.progress import progress


class Line(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp: int | None = None


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-k", "--key-separator", metavar="TEXT", help="Split every line at its first TEXT: key before, value behind."
)
@click.option("--format", "style", type=click.Choice(["lines", "json", "whole"]), default="lines", show_default=True,
              help="A record per line; a JSON object per line; each file one record.")  # fmt: skip
@click.option("-p", "--partition", type=click.IntRange(min=0), help="All into this one; by key otherwise.")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="On every record; repeatable.")
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
              show_default=True, help="Codec of the batches.")  # fmt: skip
@click.option("--null", metavar="TEXT", help="A value that is just TEXT is a null (a tombstone on compacted topics).")
@client_command
def produce(
    target: Target,
    topic: str,
    files: tuple[Path, ...],
    key_separator: str | None,
    style: str,
    partition: int | None,
    headers: tuple[str, ...],
    compression: Any,
    null: str | None,
) -> None:
    """Send lines to TOPIC: of FILES, or of standard input.

    Every line is stored once, in order per partition, also when an answer is lost and the batch is sent again. It ends
    when everything is acknowledged; if something is not, it says how much and exits with 1.

    \b
    Examples:
      seq 1000 | fencepost produce numbers
      fencepost produce orders -k : orders.txt         lines like  customer-7:two apples
      fencepost produce logs -z lz4 /var/log/*.log
      echo '{"key": "a", "value": "1", "headers": {"h": "x"}}' | fencepost produce t --format json
    """
    from fencepost.client.producer import Producer

    common = [_header(text) for text in headers]
    sent = size = 0
    with Producer(target.settings(), compression=compression) as producer, progress("sent", files) as advance:
        for line in _lines(files, style, key_separator, null):
            producer.send(
                topic,
                line.value,
                key=line.key,
                headers=[*common, *(line.headers or ())] or None,
                partition=line.partition if line.partition is not None else partition,
                timestamp=line.timestamp,
            )
            sent += 1
            length = len(line.value or b"") + len(line.key or b"")
            size += length
            advance(1, length + 1)
        producer.flush()
    records = "1 record" if sent == 1 else f"{sent:,} records"
    target.done(f"{records} ({size:,} bytes) in {topic}", {"topic": topic, "records": sent, "bytes": size})


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"a header is NAME=VALUE, not {text!r}")
    return name, value.encode()


def _lines(files: tuple[Path, ...], style: str, separator: str | None, null: str | None) -> Iterator[Line]:
    if style == "whole":
        if not files:
            yield Line(sys.stdin.buffer.read())
        for file in files:
            yield Line(file.read_bytes(), key=file.name.encode() if separator is not None else None)
        return
    with ExitStack() as opened:
        streams: list[IO[bytes]] = [opened.enter_context(file.open("rb")) for file in files] or [sys.stdin.buffer]
        for stream in streams:
            for number, raw in enumerate(stream, 1):
                text = raw.removesuffix(b"\n").removesuffix(b"\r")
                if style == "json":
                    if text.strip():
                        yield _from_json(text, f"{stream.name}, line {number}")
                else:
                    yield _from_text(text, separator, null, number)


def _from_text(text: bytes, separator: str | None, null: str | None, number: int) -> Line:
    key: bytes | None = None
    value: bytes | None = text
    if separator is not None:
        found, mark, rest = text.partition(separator.encode())
        if not mark:
            raise click.ClickException(f"line {number} has no {separator!r} between key and value")
        key, value = found, rest
    if null is not None and value == null.encode():
        value = None
    return Line(value, key)


def _from_json(text: bytes, where: str) -> Line:
    try:
        row = json.loads(text)
        if not isinstance(row, dict) or "value" not in row:
            raise ValueError("an object with at least `value` is expected")
        headers = row.get("headers") or {}
        pairs = headers.items() if isinstance(headers, dict) else [(name, value) for name, value in headers]
        return Line(
            _bytes(row["value"]),
            _bytes(row.get("key")),
            [(str(name), _bytes(value)) for name, value in pairs],
            row.get("partition"),
            row.get("timestamp"),
        )
    except (ValueError, TypeError) as error:
        raise click.ClickException(f"{where}: {error}") from error


def _bytes(value: Any) -> bytes | None:
    """Text as it is; anything else that JSON can say, as JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
