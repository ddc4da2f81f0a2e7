"""`fencepost consume`: the records of a topic, as text or JSON."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import is_terminal
from fencepost.cli.owning import how_to_own, own_options, told_when_lost
from fencepost.cli.progress import progress

if TYPE_CHECKING:
    from fencepost.client.reader import ReadRecord


@click.command()
@click.argument("topic")
@click.option("-f", "--format", "template", metavar="TEMPLATE",
              help="%v value, %k key, %t topic, %p partition, %o offset, %T time, %h headers [default: %v]; "
                   "or raw: the values and nothing else, not even an end of line.")  # fmt: skip
@click.option("-s", "--start", default="earliest", show_default=True, metavar="PLACE",
              help="earliest, latest, committed (with --group), an offset, or a time (2026-11-15T08:00).")  # fmt: skip
@click.option("--stop", metavar="PLACE", help="Where to end; without it the present end, or never with --follow.")
@click.option(
    "-p", "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable."
)
@click.option("-c", "--count", type=click.IntRange(min=1), help="End after this many records.")
@click.option("-F", "--follow", is_flag=True, help="Go on for ever, with every new record.")
@click.option("--group", help="Store the position in this consumer group.")
@click.option("--uncommitted", is_flag=True, help="Show records of open and aborted transactions too.")
@own_options
@client_command
def consume(
    target: ClusterTarget,
    topic: str,
    template: str | None,
    start: str,
    stop: str | None,
    partitions: tuple[int, ...],
    count: int | None,
    follow: bool,
    group: str | None,
    uncommitted: bool,
    owned_in: str | None,
    generation: int | None,
) -> None:
    """Print the records of TOPIC, one per line.

    Bytes come out as they are; at a terminal what is no text is escaped. --json prints one object per record, which
    `fencepost produce --format json` reads back to the same bytes. With --own it owns what it reads, and exits with 75
    when somebody takes over.

    \b
    Examples:
      fencepost consume orders                          what there is now
      fencepost consume orders -F -s latest             what comes from now on
      fencepost consume orders -c 10 -f '%p:%o %k=%v'
      fencepost consume orders --json | jq .value
      fencepost consume work --own work-readers --group workers -s committed -F
    """
    from fencepost.client.reader import Reader
    from fencepost.types import TopicPartition

    if target.as_json and template is not None:
        raise click.UsageError("--json and --format exclude each other")
    escape = is_terminal(sys.stdout)
    show = _as_json if target.as_json else _raw if template == "raw" else _by_template(template or "%v", escape=escape)
    wanted: Any = [TopicPartition(topic, index) for index in partitions] or topic
    end: Any = _place(stop) if stop is not None else None if follow else "latest"
    begin, out, seen = _place(start), sys.stdout.buffer, 0
    if end is not None and isinstance(begin, int) and _says_beyond(target, topic, partitions, begin):
        return
    how = how_to_own(owned_in, generation)
    with (
        told_when_lost(owned_in),
        Reader(
            target.settings(),
            wanted,
            start=begin,
            stop=end,
            group=group,
            read_committed=not uncommitted,
        ) as reader,
        progress("read", total=count, quiet=escape) as advance,  # the records themselves show it at a terminal
    ):
        if owned_in is not None:
            reader.own(owned_in, **how)
        try:
            for record in reader:
                line = show(record)
                out.write(line)
                seen += 1
                advance(1, len(line))
                if follow:
                    out.flush()
                if seen == count:
                    break
        finally:
            out.flush()  # if nobody reads any more it raises, and the group's position stays where it is
            if group is not None:
                reader.commit()


def _says_beyond(target: ClusterTarget, topic: str, partitions: tuple[int, ...], offset: int) -> bool:
    """Return whether no partition has the offset yet, and say so."""
    with target.admin() as admin:
        ends = admin.latest(topic)
    beyond = all(offset > end for index, end in ends.items() if not partitions or index in partitions)
    if beyond:
        shown = ", ".join(f"{end} in partition {index}" for index, end in ends.items())
        click.echo(f"fencepost: {topic} has nothing from offset {offset} on yet: it ends at {shown}", err=True)
    return beyond


def _place(text: str) -> Any:
    if text in ("earliest", "latest", "committed"):
        return text
    if text.isdigit():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is no place: earliest, latest, committed, an offset, or a time like 2026-11-15T08:00"
        ) from None


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey instead of showing it; tabs and ends of lines are harmless."""


def _escaped(data: bytes) -> bytes:
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).encode()


def _raw(record: ReadRecord) -> bytes:
    return record.value or b""


def _by_template(template: str, *, escape: bool) -> Callable[[ReadRecord], bytes]:
    first, *rest = template.split("%") if "%%" not in template else _split_escaped(template)
    parts = [(part[:1], part[1:].encode()) for part in rest]
    for letter, _ in parts:
        if letter not in _FIELDS:
            known = " ".join(f"%{letter}" for letter in _FIELDS)
            raise click.UsageError(f"%{letter} is not known in --format, only {known}")

    def show(record: ReadRecord) -> bytes:
        out = [first.encode()]
        for letter, text in parts:
            field = _FIELDS[letter](record)
            out += (_escaped(field) if escape else field, text)
        return b"".join((*out, b"\n"))

    return show


def _time(record: ReadRecord) -> bytes:
    return datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds").encode()


_FIELDS: Final[dict[str, Callable[[ReadRecord], bytes]]] = {
    "v": _raw,
    "k": lambda record: record.key or b"",
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": _time,
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "%": lambda _record: b"%",
}


def _split_escaped(template: str) -> list[str]:
    """Splits at % like str.split, but leaves `%%` as one piece that begins with %."""
    pieces, at = [""], 0
    while at < len(template):
        if template[at] != "%":
            pieces[-1] += template[at]
            at += 1
        else:
            pieces.append(template[at + 1 : at + 2])
            at += 2
    return pieces


def _as_json(record: ReadRecord) -> bytes:
    """Bytes that are no text come as {"base64": "…"}."""
    text = json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _json_bytes(record.key),
            "value": _json_bytes(record.value),
            "headers": [[name, _json_bytes(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )
    return text.encode() + b"\n"


def _json_bytes(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
