"""`fencepost produce`: send lines or files to a topic."""

from __future__ import annotations

import base64
import json
import os
import sys
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import counted, progress
from fencepost.cli.own import (
    PRODUCER_SESSION,
    OwnershipLost,
    how_to_own,
    own_options,
    partitions_of,
    told_when_lost,
    woken_when_lost,
)
from fencepost.errors import Fenced, FencepostError, RecordTooLarge, SendFailed
from fencepost.types import NO_TIMESTAMP, fault_of_topic_name

if TYPE_CHECKING:
    from fencepost.client.produce.ticket import Settlement, Ticket

_REMEMBERED: Final = 100_000
"""Records that a tally keeps before it drops the stored ones."""
_NO_LINE: Final = -1
_LARGEST: Final = {"partition": 2**31 - 1, "timestamp": 2**63 - 1}


class InputPlace(NamedTuple):
    """The file and line of a record."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}, line {self.line}"


class InputRecord(NamedTuple):
    file: str
    number: int | None
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp: int | None = None

    @property
    def place(self) -> InputPlace:
        return InputPlace(self.file, self.number)


class WrongLine(Exception):
    """A line that is not a valid record."""

    def __init__(self, place: InputPlace, why: object) -> None:
        super().__init__(str(why))
        self.place = place


def _is_stored(batch: Settlement) -> bool:
    """Return whether all records of the batch are certainly stored."""
    if batch.moved is not None:
        return all(_is_stored(run.settlement) for run in batch.moved.runs)
    return batch.settled and batch.error is None


class SendTally:
    """The outcome of the records so far: the first that failed, and how many are stored."""

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.failed: list[SendFailed] = []
        """One error per batch; the producer appends them."""
        self._unsettled: dict[tuple[Settlement, str], tuple[int, array[int]]] = {}
        """By batch and file: the first record's index, and the lines of the records, since the server may refuse a part
        of the batch. Stored ones are dropped."""
        self._remembered, self._most = 0, _REMEMBERED

    def add(self, line: InputRecord, ticket: Ticket) -> int:
        length = len(line.value or b"") + len(line.key or b"")
        self.count += 1
        self.bytes += length
        _, lines = self._unsettled.setdefault((ticket.settlement, line.file), (ticket.index, array("q")))
        lines.append(_NO_LINE if line.number is None else line.number)
        self._remembered += 1
        if self._remembered > self._most:
            self._forget_stored()
        return length

    def _forget_stored(self) -> None:
        self._unsettled = {where: known for where, known in self._unsettled.items() if not _is_stored(where[0])}
        self._remembered = sum(len(lines) for _, lines in self._unsettled.values())
        self._most = max(_REMEMBERED, 2 * self._remembered)

    def first_failed(self) -> tuple[InputPlace, FencepostError] | None:
        """Return the first record that failed. Call it once everything is settled."""
        from fencepost.client.produce.ticket import Ticket

        for (batch, file), (first, lines) in self._unsettled.items():
            if _is_stored(batch):
                continue
            for index, line in enumerate(lines, first):
                if (error := Ticket(batch, index, NO_TIMESTAMP).exception()) is not None:
                    return InputPlace(file, None if line == _NO_LINE else line), error
        return None

    def stored(self) -> str:
        lost, doubt = (
            sum(error.count for error in self.failed if error.persisted == answer) for answer in ("no", "unknown")
        )
        stored = self.count - lost - doubt
        if not stored:
            said = "nothing is stored"
        elif self.failed:  # later records may be stored too, in other partitions
            said = f"{stored:,} of {counted(self.count, 'record')} sent {'is' if stored == 1 else 'are'} stored"
        else:
            said = f"{counted(stored, 'record')} before it {'is' if stored == 1 else 'are'} stored"
        return said + (f", and {doubt:,} may be" if doubt else "")


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-k", "--key-separator", metavar="TEXT", help="Split every line at its first TEXT into key and value.")
@click.option("--format", "style", type=click.Choice(["lines", "json", "whole"]), default="lines", show_default=True,
              help="One record per line, one JSON object per line, or one record per file.")  # fmt: skip
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Partition of all records [default: by key].")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE",
              help="Header of every record; repeatable.")  # fmt: skip
@click.option("-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
              help="Compression codec [default: none].")  # fmt: skip
@click.option("--null", metavar="TEXT", help="Send null (a tombstone) for values that equal TEXT.")
@own_options
@client_command
def produce(
    target: ClusterTarget,
    topic: str,
    files: tuple[Path, ...],
    key_separator: str | None,
    style: str,
    partition: int | None,
    headers: tuple[str, ...],
    compression: Any,
    null: str | None,
    owned_in: str | None,
    generation: int | None,
) -> None:
    """Send lines of FILES, or of standard input, to TOPIC.

    Every line is stored exactly once and in order per partition, also when a response is lost and the batch is sent
    again. The command ends when all records are acknowledged. At a line that is not a valid record, or that the server
    rejects, it stops, reports the line and how many records are stored, and exits with 1. -X also takes producer
    settings: max.request.size, linger.ms, acks … With --own it owns the topic's partitions (or that of -p) meanwhile,
    and exits with 75 when another owner takes over.

    \b
    Examples:
      seq 1000 | fencepost produce numbers
      fencepost produce orders -k : orders.txt         lines like  customer-7:two apples
      fencepost produce logs -z lz4 /var/log/*.log
      fencepost produce ledger --own ledger-writers entries.txt
      echo '{"key": "a", "value": "1", "headers": {"h": "x"}}' | fencepost produce t --format json
    """
    from fencepost.client.cluster.routing import Routes
    from fencepost.client.producer import Producer

    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty; omit it to send lines without keys")
    if (fault := fault_of_topic_name(topic)) is not None:
        raise FencepostError(f"{fault}; nothing is stored")
    common = [_header(text) for text in headers]
    settings, options = target.producer_settings()
    if compression is not None:
        options["compression"] = compression
    with Routes(settings) as routes:
        routes.any()  # fail at once on a wrong address; the producer waits for a server that goes away later
    sent, stopped = SendTally(), ""
    how = how_to_own(owned_in, generation, PRODUCER_SESSION)
    names = [] if owned_in is None else partitions_of(target, topic, () if partition is None else (partition,))
    with (
        told_when_lost(owned_in),
        ExitStack() as at_once,
        Producer(settings, **options, on_error=sent.failed.append) as producer,
        progress("sent", files) as advance,
    ):
        line: InputRecord | None = None
        if names:
            how["on_lost"] = at_once.enter_context(woken_when_lost())
            producer.own(owned_in, names, **how)
        try:
            for line in _lines(files, style, key_separator, null):
                ticket = producer.send(
                    topic,
                    line.value,
                    key=line.key,
                    headers=[*common, *(line.headers or ())] or None,
                    partition=line.partition if line.partition is not None else partition,
                    timestamp=line.timestamp,
                )
                advance(1, sent.add(line, ticket) + 1)
                if sent.failed:
                    break
        except WrongLine as error:
            stopped = f"{error.place}: {error}"
        except FencepostError as error:  # this record was rejected; the code below looks at earlier failures
            if owned_in is not None and isinstance(error, Fenced):
                raise
            stopped = f"{line.place}: {_explained(error)}" if line is not None else _explained(error)
        producer.flush()
    if owned_in is not None and any(isinstance(error, Fenced) for error in sent.failed):
        raise OwnershipLost(f"{sent.failed[0]}; {sent.stored()}")
    if (first := sent.first_failed()) is not None:
        stopped = f"{first[0]}: {_explained(first[1])}"
    elif sent.failed and not stopped:
        stopped = _explained(sent.failed[0])
    if stopped:
        raise FencepostError(f"{stopped}; {sent.stored()}")
    result = {"topic": topic, "records": sent.count, "bytes": sent.bytes}
    target.done(f"{counted(sent.count, 'record')} ({sent.bytes:,} bytes) in {topic}", result)


def _explained(error: FencepostError) -> str:
    """Return the error's message, with advice in terms of the command's options."""
    if isinstance(error, RecordTooLarge):
        return f"{error}; -X max.request.size=N allows more, if the topic's max.message.bytes does"
    return str(error)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header takes NAME=VALUE, not {text!r}")
    return name, os.fsencode(value)


def _lines(files: tuple[Path, ...], style: str, separator: str | None, null: str | None) -> Iterator[InputRecord]:
    if not files and sys.stdin is None:
        raise click.UsageError("standard input is closed; name files, or redirect standard input")
    stdin = "standard input"
    if style == "whole":
        if not files:
            yield InputRecord(stdin, None, sys.stdin.buffer.read())
        for file in files:
            key = file.name.encode() if separator is not None else None
            yield InputRecord(str(file), None, file.read_bytes(), key=key)
        return
    with ExitStack() as opened:
        streams: list[tuple[str, IO[bytes]]] = [(str(file), opened.enter_context(file.open("rb"))) for file in files]
        for name, stream in streams or [(stdin, sys.stdin.buffer)]:
            for number, raw in enumerate(stream, 1):
                text = raw.removesuffix(b"\n").removesuffix(b"\r")
                if style == "json":
                    if text.strip():
                        yield _from_json(text, name, number)
                else:
                    yield _from_text(text, separator, null, name, number)


def _from_text(text: bytes, separator: str | None, null: str | None, file: str, number: int) -> InputRecord:
    key: bytes | None = None
    value: bytes | None = text
    if separator is not None:
        found, mark, rest = text.partition(os.fsencode(separator))
        if not mark:
            raise WrongLine(InputPlace(file, number), f"no separator {separator!r} between key and value")
        key, value = found, rest
    if null is not None and value == os.fsencode(null):
        value = None
    return InputRecord(file, number, value, key)


def _from_json(text: bytes, file: str, number: int) -> InputRecord:
    try:
        row = json.loads(text)
        if not isinstance(row, dict) or "value" not in row:
            raise ValueError("expected a JSON object with at least `value`")
        return InputRecord(
            file,
            number,
            _bytes(row["value"]),
            _bytes(row.get("key")),
            [(name, _bytes(value)) for name, value in _header_pairs(row.get("headers"))],
            _whole_number(row, "partition"),
            _timestamp(row),
        )
    except ValueError as error:
        raise WrongLine(InputPlace(file, number), error) from error


def _header_pairs(headers: Any) -> list[tuple[str, Any]]:
    """Return the headers as pairs, from an object or from a list of pairs (a name may occur more than once)."""
    if headers is None:
        return []
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise ValueError("`headers` must be an object or a list of [name, value] pairs")
    return [(name, value) for name, value in pairs]


def _whole_number(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is None or (type(value) is int and 0 <= value <= _LARGEST[name]):
        return value
    raise ValueError(f"`{name}` must be a non-negative integer, not {json.dumps(value)}")


def _timestamp(row: dict[str, Any]) -> int | None:
    from fencepost.client.cluster.checks import milliseconds  # as all of the client: `--help` must not load it

    time = _whole_number(row, "timestamp")
    return None if time is None else milliseconds(time, "`timestamp`")


def _bytes(value: Any) -> bytes | None:
    """Encode a JSON value: text as UTF-8, {"base64": "…"} (the form in which `consume --json` writes bytes that are not
    UTF-8) as the decoded bytes, anything else as compact JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    return json.dumps(value, separators=(",", ":")).encode()
