"""A run of a bench from its first line to its last: where its data lies meanwhile, and what becomes of its figures."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console

from bench import machine
from bench.brokers import Broker
from bench.results import Results

RESULTS: Final = Path(__file__).resolve().parent / "results"
_BUSY: Final = 0.5
"""Load average above which others would be measured too."""

quick = click.option("--quick", is_flag=True, help="Less of everything: for a look, not for a claim.")
reps = click.option("--reps", type=click.IntRange(min=1), help="Repetitions, instead of the plan's.")
name = click.option("--name", help="Of the result file [default: BENCH-DATE, with -quick].")
folder = click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Where brokers keep their data meanwhile."
)


class Run(NamedTuple):
    results: Results
    scratch: Path
    """A folder that is removed at the end."""
    say: Callable[[str], None]


@contextmanager
def running(
    bench: str,
    *,
    quick: bool,
    how: str = "",
    name: str | None = None,
    folder: Path | None = None,
    parts: Iterable[str] = (),
    packages: Sequence[str] = (),
) -> Iterator[Run]:
    """Show the tables and draw the pictures in the end, also of a run that is cut off.

    `how`: what distinguishes the run, beside "quick" or "full". `parts`: those that were chosen, if not all were.
    `packages`: further ones, whose versions matter.
    """
    console = make_console()
    kind = "quick" if quick else "full"
    about = {**machine.describe(*packages), "run": f"{kind}, {how}" if how else kind}
    load = about["machine"]["load_before"]
    if load > _BUSY:
        console.print(f"the machine is busy (load {load}): these figures will be noise", style="red")
    stem = name or "-".join([f"{bench}-{dt.datetime.now(dt.UTC).date()}", *(["quick"] if quick else []), *parts])
    file = RESULTS / f"{stem}.json"
    results = Results(about, file)
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-", dir=folder))
    try:
        yield Run(results, scratch, lambda line: console.print(line, style="dim", highlight=False))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        report(results, console, file)


@contextmanager
def started(*brokers: Broker) -> Iterator[None]:
    """Start the brokers, and remove them with their data in the end."""
    try:
        for broker in brokers:
            broker.start()
        yield
    finally:
        for broker in brokers:
            broker.remove()


def make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=150)


def report(results: Results, console: Console, file: Path) -> None:
    """Show the tables, and draw the pictures beside the file of the results."""
    from bench.report import growth, own, picture, table

    table.show(results, console)
    path = file.with_suffix(".png")
    drawn = [each.name for each in growth.draw(results, path)]
    if picture.draw(results, path) or own.draw(results, path):
        drawn.append(path.name)
    console.print(" and ".join((f"saved: {file}", *drawn)), highlight=False)
