"""Tables for people, JSON for programs.

rich draws when stdout is a terminal; elsewhere the same table is plain aligned text, stable for `grep` and `awk`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TextIO

import click


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
