"""Tables and progress bars for people, JSON for programs.

rich draws when stdout is a terminal; elsewhere the same table is plain aligned text, stable for `grep` and `awk`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TextIO

import click

_RECORDS_PER_UPDATE: Final = 1000
"""Records between two updates of a progress bar, which would otherwise slow the transfer down."""


class Column(NamedTuple):
    title: str
    right: bool = False
    """Numbers line up on the right."""


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal. A stream that the shell closed (`<&-`) is None."""
    return stream is not None and stream.isatty()


def show_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print the rows, or the sentence `empty` if there are none."""
    cells = [[cell(value) for value in row] for row in rows]
    if not cells:
        click.echo(empty)
    elif is_terminal(sys.stdout):
        _show_rich(columns, cells)
    else:
        _show_plain(columns, cells)


def show_json(value: Any) -> None:
    from fencepost.core.rows import plain  # only now: a row type takes time to be made

    click.echo(json.dumps(plain(value), indent=2))


def cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def counted(number: int, what: str) -> str:
    """Return `1 record`, `1,234 records`."""
    return f"1 {what}" if number == 1 else f"{number:,} {what}s"


def when(timestamp: int) -> str | None:
    """Format a timestamp in milliseconds as local time; None if it is negative, which means "never"."""
    if timestamp < 0:
        return None
    return datetime.fromtimestamp(timestamp / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def _show_plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    titles = [column.title.upper() for column in columns]
    widths = [max(len(line[at]) for line in [titles, *rows]) for at in range(len(columns))]
    for line in [titles, *rows]:
        aligned = (
            text.rjust(width) if column.right else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        click.echo("  ".join(aligned).rstrip())


def _show_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))  # Text: names may contain rich's markup
    Console().print(table)


class Advance(Protocol):
    def __call__(self, records: int, size: int, left: int | None = None, /) -> None: ...


@contextmanager
def progress(
    verb: str, files: Sequence[Path] = (), *, total: int | None = None, quiet: bool = False, rates: bool = False
) -> Iterator[Advance]:
    """Show a progress bar on stderr; nothing if stderr is not a terminal. Yield a function to call with the records and
    bytes done, and how many records are left if that has changed. The bar ends at the size of the files or at `total`
    records; without either it only counts. `rates`: show the total, and records and bytes per second, too."""
    if quiet or not is_terminal(sys.stderr):
        yield lambda _records, _bytes, _left=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

    in_bytes = sum(file.stat().st_size for file in files)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{verb} 0", total=in_bytes or total)
        records = size = shown = 0
        began = time.monotonic()

        def text() -> str:
            if not rates:
                return f"{verb} {records:,}"
            seconds = max(time.monotonic() - began, 0.001)
            per_second = f"{records / seconds:,.0f}/s, {size / seconds / 1e6:.1f} MB/s"
            return f"{verb} {records:,} of {total:,} ({per_second})"

        def advance(more_records: int, more_bytes: int, left: int | None = None) -> None:
            nonlocal records, size, shown, total
            records += more_records
            size += more_bytes
            if left is not None:
                total = records + left
            if records - shown >= _RECORDS_PER_UPDATE:
                shown = records
                bar.update(task, completed=size if in_bytes else records, total=in_bytes or total, description=text())

        yield advance
