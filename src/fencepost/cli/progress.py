"""A progress bar on stderr; nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fencepost.cli.output import is_terminal

_EVERY: Final = 1000
"""Records between two updates of the bar, which would otherwise slow the transfer down."""


@contextmanager
def progress(
    verb: str, files: Sequence[Path] = (), *, total: int | None = None, quiet: bool = False, rates: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the (records, bytes) done. The bar ends at the size of the files or at `total`
    records; without either it only counts. `rates`: show the total, and records and bytes per second, too."""
    if quiet or not is_terminal(sys.stderr):
        yield lambda _records, _bytes: None
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

        def advance(more_records: int, more_bytes: int) -> None:
            nonlocal records, size, shown
            records += more_records
            size += more_bytes
            if records - shown >= _EVERY:
                shown = records
                bar.update(task, completed=size if in_bytes else records, description=text())

        yield advance
