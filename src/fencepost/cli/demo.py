"""`fencepost demo`: the guarantees, shown in one minute."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from fencepost.cli.output import Column, show_json, show_table
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.demo.story import DemoResult


@click.command()
@click.option("-n", "--records", type=click.IntRange(min=1000), default=1_000_000, show_default=True, help="Orders.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run the Spark job, which needs Java.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=Path("fencepost-demo.svg"),
    show_default=True,
    metavar="FILE",
    help="File for the picture of throughput over time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def demo(records: int, spark: bool, picture: Path, as_json: bool) -> None:
    """Show the exactly-once guarantees in about a minute.

    The demo writes a million orders and kills the server with -9 meanwhile. A Spark job enriches them; its driver is
    killed with -9 while it writes, and a standby resumes from the checkpoint. A writer that owns a partition is paused,
    replaced, and woken up. At the end a third-party client counts all records. Only a picture stays on the disk.
    Exits with 1 if a record is lost or duplicated.

    \b
    Examples:
      fencepost demo
      fencepost demo --records 100000 --no-spark
      fencepost demo --json --picture /tmp/demo.svg
    """
    from fencepost.demo import narrator, story

    signal.signal(signal.SIGTERM, _end)
    verdict = story.tell(records, narrator.choose(as_json), with_spark=spark, picture_at=picture)
    if as_json:
        show_json(verdict)
    else:
        _show(verdict)
    if not verdict.holds:
        raise FencepostError("the proof failed: the table above shows which records are lost, duplicated or late")


def _end(number: int, _: object) -> NoReturn:
    """Exit on SIGTERM, so that the processes the demo started are ended too."""
    sys.exit(128 + number)


def _show(verdict: DemoResult) -> None:
    from fencepost.demo.story import NEXT

    counts, ledger = verdict.counts, verdict.takeover
    numbers = ("expected", "found", "lost", "doubled", "out of order", "refused")
    columns = [Column("topic"), *(Column(title, True) for title in numbers)]
    rows = [(f.what, *(f"{n:,}" for n in (f.expected, f.found, f.lost, f.doubled, f.disordered)), None) for f in counts]
    of_ledger = (ledger.expected, ledger.found, ledger.lost, ledger.doubled, ledger.late, ledger.refused)
    rows.append(("ledger", *(f"{n:,}" for n in of_ledger)))
    click.echo()
    show_table(columns, rows, empty="")
    click.echo()
    click.secho(verdict.sentence, bold=True, fg="green" if verdict.holds else "red")
    click.echo(f"{verdict.seconds:g} s; the picture is in {verdict.picture}")
    click.echo("\nNext steps:")
    for command, why in NEXT:
        click.echo(f"  {command:<44}  {why}")
