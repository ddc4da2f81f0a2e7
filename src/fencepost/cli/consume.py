"""`fencepost consume`: the records of a topic, as text or JSON."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli.options import Target, client_command
from fencepost.cli.progress import progress

if TYPE_CHECKING:
    from fencepost.client.reader import ReadRecord


@click.command()
@click.argument("topic")
@click.option("-f", "--format", "template", metavar="TEMPLATE", default="%v", show_default=True,
              help="%v value, %k key, %t topic, %p partition, %o offset, %T time, %h headers.")  # fmt: skip
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
@client_command
def consume(
    target: Target,
    topic: str,
    template: str,
    start: str,
    stop: str | None,
    partitions: tuple[int, ...],
    count: int | None,
    follow: bool,
    group: str | None,
    uncommitted: bool,
) -> None:
    """Print the records of TOPIC, one per line.

    --json prints one object per record.

    \b
    Examples:
      fencepost consume orders                          what there is now
      fencepost consume orders -F -s latest             what comes from now on
      fencepost consume orders -c 10 -f '%p:%o %k=%v'
      fencepost consume orders --json | jq .value
    """
    from fencepost.client.reader import Reader
    from fencepost.types import TopicPartition

    show = _as_json if target.as_json else lambda record: _by_template(template, record)
    wanted: Any = [TopicPartition(topic, index) for index in partitions] or topic
    end: Any = _place(stop) if stop is not None else None if follow else "latest"
    out, seen = sys.stdout, 0
    with (
        Reader(
            target.settings(),
            wanted,
            start=_place(start),
            stop=end,
            group=group,
            read_committed=not uncommitted,
        ) as reader,
        progress("read", total=count, quiet=out.isatty()) as advance,  # the records themselves show it at a terminal
    ):
        try:
            for record in reader:
                line = show(record) + "\n"
                out.write(line)
                seen += 1
                advance(1, len(line))
                if follow:
                    out.flush()
                if seen == count:
                    break
        finally:
            out.flush()
            if group is not None:
                reader.commit()


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


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8", "backslashreplace")


def _by_template(template: str, record: ReadRecord) -> str:
    fields = {
        "v": _text(record.value),
        "k": _text(record.key),
        "t": record.topic,
        "p": str(record.partition),
        "o": str(record.offset),
        "T": datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds"),
        "h": ",".join(f"{name}={_text(value)}" for name, value in record.headers),
        "%": "%",
    }
    first, *parts = template.split("%") if "%%" not in template else _split_escaped(template)
    out = [first]
    for part in parts:
        if not part or part[0] not in fields:
            known = " ".join(f"%{letter}" for letter in fields)
            raise click.UsageError(f"%{part[:1]} is not known in --format, only {known}")
        out.append(fields[part[0]] + part[1:])
    return "".join(out)


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


def _as_json(record: ReadRecord) -> str:
    """Bytes that are no text come as {"base64": "…"}."""
    return json.dumps(
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


def _json_bytes(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
