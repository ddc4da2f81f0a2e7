"""`fencepost consume`: the records of a topic, as text or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from fencepost.cli.options import ClusterTarget, client_command, partitions_option
from fencepost.cli.output import is_terminal, progress
from fencepost.cli.own import how_to_own, own_options, told_when_lost
from fencepost.core.rows import json_bytes

if TYPE_CHECKING:
    from fencepost.client.reader import ReadRecord
    from fencepost.types import TopicPartition


@click.command()
@click.argument("topic")
@click.option("-f", "--format", "template", metavar="TEMPLATE",
              help="%v value, %k key, %t topic, %p partition, %o offset, %T time, %h headers [default: %v]; "
                   "or `raw`: the values only, without line ends.")  # fmt: skip
@click.option("-s", "--start", default="earliest", show_default=True, metavar="PLACE",
              help="earliest, latest, committed (with --group), an offset, or a time (2026-11-15T08:00).")  # fmt: skip
@click.option("--stop", metavar="PLACE", help="Where to stop [default: the current end; never with --follow].")
@partitions_option
@click.option("-c", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("-F", "--follow", is_flag=True, help="Keep waiting for new records.")
@click.option("--group", help="Join this consumer group: share the topic with its other members, start where the group "
              "left off, and commit the position. With --partition or --own only commit it.")  # fmt: skip
@click.option("--member", help="The name of a static member, with --group.")
@click.option("--uncommitted", is_flag=True, help="Also print records of open and aborted transactions.")
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
    member: str | None,
    uncommitted: bool,
    owned_in: str | None,
    generation: int | None,
) -> None:
    """Print the records of TOPIC, one per line.

    Bytes are printed as they are; a terminal gets non-text bytes escaped. --json prints one object per record, which
    `fencepost produce --format json` turns back into the same bytes. With --own it owns the partitions that it reads,
    and exits with 75 when another owner takes over. With --group several processes share the topic; each says on stderr
    which partitions it gets and gives up.

    \b
    Examples:
      fencepost consume orders                          all records up to now
      fencepost consume orders -F -s latest             new records only, until interrupted
      fencepost consume orders -c 10 -f '%p:%o %k=%v'
      fencepost consume orders --json | jq .value
      fencepost consume orders --group billing -F       one of several that share the topic
      fencepost consume work --own work-readers --group workers -s committed -F
    """
    from fencepost.client.reader import Reader
    from fencepost.types import TopicPartition

    if target.as_json and template is not None:
        raise click.UsageError("--json and --format cannot be combined")
    escape = is_terminal(sys.stdout)
    show = _as_json if target.as_json else _raw if template == "raw" else _by_template(template or "%v", escape=escape)
    wanted: Any = [TopicPartition(topic, index) for index in partitions] or topic
    end: Any = _place(stop) if stop is not None else None if follow else "latest"
    begin, out, seen = _place(start), sys.stdout.buffer, 0
    if end is not None and isinstance(begin, int) and _says_beyond(target, topic, partitions, begin):
        return
    how = how_to_own(owned_in, generation)
    options: dict[str, Any] = {}
    if group is not None and owned_in is not None and not partitions:
        with target.admin() as admin:  # what is owned by name does not move to other members
            wanted = [TopicPartition(topic, row.partition) for row in admin.describe_topic(topic).partitions]
    elif group is not None and not partitions:

        def revoked(lost: frozenset[TopicPartition]) -> None:
            out.flush()
            reader.commit()
            _tell("gave up", lost)

        options = {
            "member": member,
            "on_assigned": lambda assigned: _tell("got", assigned),
            "on_revoked": revoked,
            "on_lost": lambda lost: _tell("lost", lost),
        }
    if member is not None and not options:
        raise click.UsageError("--member needs --group, without --partition and --own")
    with (
        told_when_lost(owned_in),
        Reader(
            target.settings(),
            wanted,
            start=begin,
            stop=end,
            group=group,
            read_committed=not uncommitted,
            **options,
        ) as reader,
        progress("read", total=count, quiet=escape) as advance,  # at a terminal the records show the progress
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
            out.flush()  # raises if the reader of the pipe is gone; the group's position then stays where it is
            if group is not None:
                reader.commit()


def _tell(what: str, partitions: frozenset[TopicPartition]) -> None:
    click.echo(f"fencepost: {what} {', '.join(map(str, sorted(partitions)))}", err=True)


def _says_beyond(target: ClusterTarget, topic: str, partitions: tuple[int, ...], offset: int) -> bool:
    """Return whether no partition has reached `offset` yet, and if so tell the user."""
    with target.admin() as admin:
        ends = admin.latest(topic)
    beyond = all(offset > end for index, end in ends.items() if not partitions or index in partitions)
    if beyond:
        shown = ", ".join(f"{end} in partition {index}" for index, end in ends.items())
        click.echo(f"fencepost: {topic} has no records from offset {offset} on yet: it ends at {shown}", err=True)
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
            f"{text!r} is not a place: expected earliest, latest, committed, an offset, or a time like 2026-11-15T08:00"
        ) from None


_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters that a terminal would execute; tabs and line ends are harmless."""


def _escaped(data: bytes) -> bytes:
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text).encode()


def _raw(record: ReadRecord) -> bytes:
    return record.value or b""


def _by_template(template: str, *, escape: bool) -> Callable[[ReadRecord], bytes]:
    first, *rest = re.split(r"%(.?)", template, flags=re.DOTALL)
    parts = [(letter, text.encode()) for letter, text in zip(rest[::2], rest[1::2], strict=True)]
    for letter, _ in parts:
        if letter not in _FIELDS:
            known = " ".join(f"%{letter}" for letter in _FIELDS)
            raise click.UsageError(f"unknown field %{letter} in --format; known are {known}")

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


def _as_json(record: ReadRecord) -> bytes:
    """Return the record as one line of JSON. Bytes that are not UTF-8 become {"base64": "…"}."""
    text = json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": json_bytes(record.key),
            "value": json_bytes(record.value),
            "headers": [[name, json_bytes(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )
    return text.encode() + b"\n"
