"""`python -m bench`: see the package's text."""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from bench import machine
from bench.brokers import ALWAYS, KAFKA, OS, Broker, Fencepost, Kafka
from bench.growth.plan import AXES as GROWTH
from bench.report import table
from bench.results import Results
from bench.server import (
    backup,
    footprint,
    idempotence,
    latency,
    migrate,
    partitions,
    plan,
    restart,
    scrape,
    search,
    throughput,
    watching,
)
from bench.side_by_side import plan as clients_plan
from bench.spark import names as spark_names
from bench.spark import plan as spark_plan

RESULTS = Path(__file__).resolve().parent / "results"
_BUSY = 0.5
"""Load average above which others would be measured too."""
CLIENT_SECTIONS = ("throughput", "latency", "memory")
SECTIONS = (
    "footprint", "throughput", "latency", "idempotence", "partitions", "scrape", "console", "restart", "backup",
    "search", "migrate",
)  # fmt: skip
SPARK_SECTIONS = {
    "read": spark_names.READ,
    "write": spark_names.WRITE,
    "through": spark_names.THROUGH,
    "copy": spark_names.COPY,
    "small": spark_names.SMALL,
    "format": spark_names.FORMAT,
    "small-format": spark_names.SMALL_FORMAT,
}


@click.group()
def main() -> None:
    """Measure fencepost beside its peers, interleaved, on this machine."""


@main.command()
@click.option(
    "--quick", is_flag=True, help="A few minutes, one repetition, a smaller log: for a look, not for a claim."
)
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Only this section; may be repeated.")
@click.option("--reps", type=click.IntRange(min=1), help="Repetitions, instead of the plan's.")
@click.option("--name", help="Of the result files [default: server-DATE, with -quick].")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Where brokers keep their data meanwhile."
)
def server(quick: bool, only: tuple[str, ...], reps: int | None, name: str | None, folder: Path | None) -> None:
    """The embedded server beside Apache Kafka, under confluent-kafka and Java's own tools. Needs java and mvn."""
    console = _console()
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-", dir=folder))
    chosen = plan.quick(scratch) if quick else plan.full(scratch)
    if reps is not None:
        chosen = replace(chosen, reps=reps, footprint_reps=reps, scrape_reps=reps)
    kind = "quick" if quick else "full"
    wanted = only or SECTIONS
    today = dt.datetime.now(dt.UTC).date()
    stem = name or f"server-{today}{'-quick' if quick else ''}{''.join(f'-{section}' for section in only)}"
    about = {**machine.describe(), "run": f"{kind}, {chosen.reps} repetitions"}
    results = Results(about, RESULTS / f"{stem}.json")
    try:
        _measure(chosen, wanted, results, console)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _report(results, console, RESULTS / f"{stem}.png")


@main.command()
@click.option("--quick", is_flag=True, help="Fewer rows, two repetitions: for a look, not for a claim.")
@click.option("--rows", type=click.IntRange(min=1000), help="Rows, instead of the plan's.")
@click.option("--reps", type=click.IntRange(min=1), help="Repetitions, instead of the plan's.")
@click.option(
    "--only", multiple=True, type=click.Choice(sorted(SPARK_SECTIONS)), help="Only this section; may be repeated."
)
@click.option("--connector/--no-connector", default=True, help="Spark's own connector beside ours [default: yes].")
@click.option("--name", help="Of the result files [default: spark-DATE, with -quick].")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where brokers keep their data.")
def spark(
    quick: bool,
    rows: int | None,
    reps: int | None,
    only: tuple[str, ...],
    connector: bool,
    name: str | None,
    folder: Path | None,
) -> None:
    """Our source, sink and copy beside Spark's own Kafka connector, in one session. Needs java and mvn."""
    from bench.spark.measure import measure
    from bench.spark.session import open_session

    console = _console()
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-", dir=folder))
    chosen = spark_plan.QUICK if quick else spark_plan.FULL
    chosen = replace(chosen, rows=rows or chosen.rows, reps=reps or chosen.reps)
    today = dt.datetime.now(dt.UTC).date()
    stem = name or f"spark-{today}{'-quick' if quick else ''}"
    kind = "quick" if quick else "full"
    about = {**machine.describe("pyspark"), "run": f"{kind}, {chosen.reps} repetitions of {chosen.rows:,} rows"}
    results = Results(about, RESULTS / f"{stem}.json")
    brokers: dict[str, Broker] = {KAFKA: Kafka(scratch / "kafka"), OS: Fencepost(scratch / "fencepost-os", "os")}

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    try:
        for broker in brokers.values():
            broker.start()
        session = open_session(connector=connector)
        sections = tuple(SPARK_SECTIONS[each] for each in only)
        measure(chosen, session, brokers, results, say, connector=connector, only=sections)
        session.stop()
    finally:
        for broker in brokers.values():
            broker.remove()
        shutil.rmtree(scratch, ignore_errors=True)
        _report(results, console, RESULTS / f"{stem}.png")


def _measure(chosen: plan.Plan, wanted: tuple[str, ...], results: Results, console: Console) -> None:
    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    load = results.about["machine"]["load_before"]
    if load > _BUSY:
        console.print(f"the machine is busy (load {load}): these figures will be noise", style="red")
    kafka = Kafka(chosen.folder / "kafka")
    ours = {sync: Fencepost(chosen.folder / f"fencepost-{sync}", sync) for sync in ("os", "always")}
    brokers: list[Broker] = [kafka, ours["os"], ours["always"]]
    assert [broker.name for broker in brokers[1:]] == [OS, ALWAYS]
    try:
        if "footprint" in wanted:
            footprint.measure(chosen, brokers[:2], results, say)
        if {"throughput", "latency", "idempotence"} & set(wanted):
            for broker in brokers:
                broker.start()
            throughput.warm_up(chosen, brokers, say)
        if "throughput" in wanted:
            throughput.measure(chosen, brokers, results, say)
        if "latency" in wanted:
            latency.measure(chosen, brokers, results, say)
        if "idempotence" in wanted:
            idempotence.measure(chosen, ours["os"], results, say)
    finally:
        for broker in brokers:
            broker.remove()
    if "partitions" in wanted:
        partitions.measure(chosen, results, say)
    if "scrape" in wanted:
        scrape.measure(chosen, results, say)
    if "console" in wanted:
        watching.measure(chosen, results, say)
    if "restart" in wanted:
        restart.measure(chosen, results, say)
    if "backup" in wanted:
        backup.measure(replace(chosen, reps=min(chosen.reps, 3)), results, say)
    if "search" in wanted:
        search.measure(chosen, results, say)
    if "migrate" in wanted:
        migrate.measure(chosen, results, say)


@main.command()
@click.option("--quick", is_flag=True, help="Two repetitions, fewer records: for a look, not for a claim.")
@click.option("--reps", type=click.IntRange(min=1), help="Repetitions, instead of the plan's.")
@click.option(
    "--size",
    "sizes",
    type=click.Choice([str(size) for size in clients_plan.FULL.records]),
    multiple=True,
    help="Only records of so many bytes; may be repeated.",
)
@click.option("--only", multiple=True, type=click.Choice(CLIENT_SECTIONS), help="Only this; may be repeated.")
@click.option("--name", help="Of the result files [default: clients-DATE, with -quick].")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where brokers keep their data.")
def clients(
    quick: bool,
    reps: int | None,
    sizes: tuple[str, ...],
    only: tuple[str, ...],
    name: str | None,
    folder: Path | None,
) -> None:
    """Producers and consumers side by side, to one Apache Kafka and to our server. Needs java and mvn."""
    from bench.side_by_side import latency as one_record
    from bench.side_by_side import memory
    from bench.side_by_side import throughput as rates

    console = _console()
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-", dir=folder))
    chosen = clients_plan.QUICK if quick else clients_plan.FULL
    if reps is not None:
        chosen = replace(chosen, reps=reps)
    if sizes:
        chosen = replace(chosen, records={size: count for size, count in chosen.records.items() if str(size) in sizes})
    today = dt.datetime.now(dt.UTC).date()
    stem = name or f"clients-{today}{'-quick' if quick else ''}{''.join(f'-{section}' for section in only)}"
    about = {**machine.describe(), "run": f"{'quick' if quick else 'full'}, {chosen.reps} repetitions"}
    results = Results(about, RESULTS / f"{stem}.json")
    kafka, ours = Kafka(scratch / "kafka"), Fencepost(scratch / "fencepost-os", "os")

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    try:
        kafka.start()
        ours.start()
        wanted = only or CLIENT_SECTIONS
        rates.warm_up(chosen, kafka, ours, say)
        if "throughput" in wanted:
            rates.measure(chosen, kafka, ours, results, say)
        if "latency" in wanted:
            one_record.measure(chosen, kafka, ours, results, say)
        if "memory" in wanted:
            memory.measure(chosen, ours, results, say)
    finally:
        kafka.remove()
        ours.remove()
        shutil.rmtree(scratch, ignore_errors=True)
        _report(results, console, RESULTS / f"{stem}.png")


@main.command()
@click.option(
    "--quick", is_flag=True, help="Fewer records, one repetition, a log of 1 GiB: for a look, not for a claim."
)
@click.option("--reps", type=click.IntRange(min=1), help="Repetitions, instead of the plan's.")
@click.option("--only", multiple=True, type=click.Choice(list(GROWTH)), help="Only this question; may be repeated.")
@click.option("--most", type=click.IntRange(min=1), help="End each curve at this value.")
@click.option("--kafka/--no-kafka", default=True, help="Apache Kafka beside our server [default: yes].")
@click.option("--name", help="Of the result files [default: growth-DATE, with -quick].")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where brokers keep their data.")
def growth(
    quick: bool,
    reps: int | None,
    only: tuple[str, ...],
    most: int | None,
    kafka: bool,
    name: str | None,
    folder: Path | None,
) -> None:
    """How cost grows with partitions, producers, connections, record sizes, group members and the log: a curve and a
    picture per question. Apache Kafka needs java and mvn."""
    from bench.growth.measure import measure
    from bench.growth.plan import FULL, QUICK

    console = _console()
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-", dir=folder))
    chosen = QUICK if quick else FULL
    chosen = replace(chosen, reps=reps or chosen.reps)
    if most is not None:
        chosen = chosen.up_to(most)
    today = dt.datetime.now(dt.UTC).date()
    stem = name or f"growth-{today}{'-quick' if quick else ''}{''.join(f'-{question}' for question in only)}"
    about = {**machine.describe(), "run": f"{'quick' if quick else 'full'}, repetitions: {chosen.reps}"}
    results = Results(about, RESULTS / f"{stem}.json")

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    try:
        measure(chosen, only or tuple(GROWTH), scratch, kafka, results, say)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _report(results, console, RESULTS / f"{stem}.png")


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def report(file: Path) -> None:
    """The tables and the picture of a run that was saved as JSON."""
    _report(Results.load(file), _console(), file.with_suffix(".png"))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=150)


def _report(results: Results, console: Console, picture_path: Path) -> None:
    from bench.report import growth, own, picture

    table.show(results, console)
    drawn = [path.name for path in growth.draw(results, picture_path)]
    if picture.draw(results, picture_path) or own.draw(results, picture_path):
        drawn.append(picture_path.name)
    if results.path is not None:
        console.print(" and ".join((f"saved: {results.path}", *drawn)), highlight=False)


if __name__ == "__main__":
    main()
