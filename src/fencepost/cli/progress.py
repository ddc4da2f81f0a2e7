"""A progress bar on stderr for whatever takes long; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fencepost.cli.output import is_terminal

_EVERY: Final = 1000
"""Records between two looks at the bar: it must not cost what it measures."""


@contextmanager
def progress(
    verb: str, files: Sequence[Path] = (), *, total: int | None = None, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with (records, bytes) done. The bar knows how much there is from the size of the files
    or from `total`, a number of records; without either it only counts."""
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

        def advance(more_records: int, more_bytes: int) -> None:
            nonlocal records, size, shown
            records += more_records
            size += more_bytes
            if records - shown >= _EVERY:
                shown = records
                bar.update(task, completed=size if in_bytes else records, description=f"{verb} {records:,}")

        yield advance
