"""`python -m bench.check COMMIT`: is this checkout slower than another commit?

Both are measured by the same jobs in one run, in turns, each client against the server of its own commit. A row
compares medians. It fails if this checkout is slower by more than the limit (10 %) and by more than the noise, which is
the distance between the quartiles of either side. CPU seconds stand beside rates: they are the steadier figure on a
busy machine.

This is for a developer before landing, not for CI: see `make bench-check`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from bench import jobs, topics
from bench.brokers import Fencepost, cpu_seconds
from bench.jobs import Fetch, Latency, Outcome, Produce

ROOT: Final = Path(__file__).resolve().parent.parent
_SIZE: Final = 100
_SECONDS_PER_MILLION: Final = "CPU s per million"
WAYS_TO_SEND: Final = (
    ("send", "fencepost", False, 1),
    ("send by key", "fencepost", True, 1),
    ("send_arrow", "fencepost_arrow", False, 3),
)
"""Name, client, whether records have keys, and the share of the records: each should take about as long."""


@dataclass
class Side:
    """One of the two commits, with its server."""

    name: str
    source: Path
    server: Fencepost


@dataclass
class Row:
    """One figure of both sides."""

    name: str
    unit: str
    smaller_is_better: bool
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: Side, value: float) -> None:
        self.values.setdefault(side.name, []).append(value)

    def ratio(self, here: str, there: str) -> float:
        """Return how fast `here` is beside `there`: above 1 is faster."""
        mine, other = (statistics.median(self.values[side]) for side in (here, there))
        return other / mine if self.smaller_is_better else mine / other

    @property
    def noise(self) -> float:
        """Return the larger distance between quartiles, as a share of its median."""
        return max(_spread(values) for values in self.values.values())


def _spread(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


class Figures:
    """The rows, in the order in which they were first measured."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}

    def add(self, side: Side, name: str, unit: str, value: float, *, smaller_is_better: bool) -> None:
        self.rows.setdefault((name, unit), Row(name, unit, smaller_is_better)).add(side, value)

    def add_run(self, side: Side, name: str, outcome: Outcome, server_cpu: float) -> None:
        millions = outcome.records / 1e6
        self.add(side, name, "k records/s", outcome.records_per_second / 1000, smaller_is_better=False)
        self.add(side, name, f"client {_SECONDS_PER_MILLION}", outcome.client_cpu / millions, smaller_is_better=True)
        self.add(side, name, f"server {_SECONDS_PER_MILLION}", server_cpu / millions, smaller_is_better=True)


def _measured(side: Side, figures: Figures, name: str, client: str, job: Produce | Fetch) -> None:
    before = cpu_seconds(side.server)
    outcome = jobs.run(client, job, source=side.source)
    figures.add_run(side, name, outcome, cpu_seconds(side.server) - before)


def send_and_read(side: Side, figures: Figures, records: int) -> None:
    """Write and read with and without a codec: record by record, with and without a key, and by columns."""
    address = side.server.address
    for codec in ("none", "lz4"):
        with topics.topic(side.server) as topic:
            for called, client, keyed, share in WAYS_TO_SEND:
                job = Produce(address, topic, records * share, _SIZE, codec=codec, keyed=keyed)
                _measured(side, figures, f"{called}, {codec}", client, job)
            for client, called in (("fencepost_arrow", "arrow()"), ("fencepost", "poll()")):
                _measured(side, figures, f"{called}, {codec}", client, Fetch(address, topic, records, _SIZE))


def strangers(side: Side, figures: Figures, records: int) -> None:
    """Measure the server under somebody else's client."""
    with topics.topic(side.server) as topic:
        _measured(side, figures, "confluent writes", "confluent", Produce(side.server.address, topic, records, _SIZE))
        _measured(side, figures, "confluent reads", "confluent", Fetch(side.server.address, topic, records // 2, _SIZE))


def one_by_one(side: Side, figures: Figures, records: int) -> None:
    """Time one acknowledged record at a time."""
    with topics.topic(side.server, 1) as topic:
        job = Latency(side.server.address, topic, records, _SIZE)
        taken = jobs.run("fencepost", job, source=side.source).latencies_ms
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
        figures.add(side, f"one acknowledged record, {label}", "ms", value, smaller_is_better=True)


MEASUREMENTS: Final[tuple[tuple[Callable[[Side, Figures, int], None], int], ...]] = (
    (send_and_read, 1_000_000),
    (strangers, 1_000_000),
    (one_by_one, 3_000),
)


@contextmanager
def _checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Check the commit out beside this one, with its kernel compiled."""
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        subprocess.run(build, cwd=folder, check=True, capture_output=True)
        yield folder / "src"
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def compare(here: Side, there: Side, *, reps: int, scale: float, say: Callable[[str], None]) -> Figures:
    """Measure both in turns; who goes first changes with every repetition. The first repetition does not count."""
    figures = Figures()
    for rep in range(reps + 1):
        noted = figures if rep else Figures()
        for measure, records in MEASUREMENTS:
            for side in (here, there) if rep % 2 else (there, here):
                say(f"{'warm-up' if rep == 0 else f'repetition {rep} of {reps}'}: {measure.__name__}, {side.name}")
                measure(side, noted, int(records * scale))
    return figures


def report(figures: Figures, here: str, there: str, limit: float, console: Console) -> list[Row]:
    """Print the table. Return the rows that are slower than they may be."""
    shown = Table(title=f"{here} beside {there}: medians; a ratio above 1 is faster")
    for column in ("what", "unit", here, there, "ratio", "noise"):
        shown.add_column(column, justify="left" if column in ("what", "unit") else "right")
    slower = []
    for row in figures.rows.values():
        ratio = row.ratio(here, there)
        if ratio < 1 - max(limit, row.noise):
            slower.append(row)
        medians = [f"{statistics.median(row.values[side]):,.3g}" for side in (here, there)]
        mark = "[red]" if row in slower else ""
        shown.add_row(row.name, row.unit, *medians, f"{mark}{ratio:.2f}", f"{row.noise:.0%}")
    console.print(shown)
    return slower


@click.command()
@click.argument("commit", default="HEAD")
@click.option("--reps", default=5, show_default=True, type=click.IntRange(min=2), help="Repetitions of each side.")
@click.option("--limit", default=10.0, show_default=True, help="Per cent by which a row may be slower.")
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.2),  # a reader's first poll does not count, and takes some 40,000 records
    help="Share of the records: 0.2 is a quick look.",
)
def main(commit: str, reps: int, limit: float, scale: float) -> None:
    """Compare this checkout, as it is, with COMMIT.

    The exit code is 1 if a row is slower than the limit and the noise allow.
    """
    console = Console()
    commit = _git("rev-parse", "--short", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="fencepost-check-") as scratch:
        folder = Path(scratch)
        with _checked_out(commit, folder / "there") as source:
            here = Side("here", ROOT / "src", Fencepost(folder / "a" / "here", "os", source=ROOT / "src"))
            there = Side(commit, source, Fencepost(folder / "b" / "there", "os", source=source))
            try:
                for side in (here, there):
                    side.server.start()
                figures = compare(
                    here, there, reps=reps, scale=scale, say=lambda text: console.print(text, style="dim")
                )
            finally:
                for side in (here, there):
                    side.server.remove()
    slower = report(figures, here.name, there.name, limit / 100, console)
    for row in slower:
        console.print(f"slower: {row.name}, {row.unit}: {row.ratio(here.name, there.name):.2f} ×")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
