"""`python -m bench`: see the package's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from bench import run
from bench.brokers import ALWAYS, KAFKA, OS, Broker, Fencepost, Kafka
from bench.growth.plan import AXES as GROWTH
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
@run.quick
@click.option("--only", multiple=True, type=click.Choice(SECTIONS), help="Only this section; may be repeated.")
@run.reps
@run.name
@run.folder
def server(quick: bool, only: tuple[str, ...], reps: int | None, name: str | None, folder: Path | None) -> None:
    """The embedded server beside Apache Kafka, under confluent-kafka and Java's own tools. Needs java and mvn."""
    count = reps or (plan.quick if quick else plan.full)(Path()).reps
    how = f"{count} repetitions"
    with run.running("server", quick=quick, how=how, name=name, folder=folder, parts=only) as going:
        chosen = (plan.quick if quick else plan.full)(going.scratch)
        if reps is not None:
            chosen = replace(chosen, reps=reps, footprint_reps=reps, scrape_reps=reps)
        _measure(chosen, only or SECTIONS, going)


@main.command()
@run.quick
@click.option("--rows", type=click.IntRange(min=1000), help="Rows, instead of the plan's.")
@run.reps
@click.option(
    "--only", multiple=True, type=click.Choice(sorted(SPARK_SECTIONS)), help="Only this section; may be repeated."
)
@click.option("--connector/--no-connector", default=True, help="Spark's own connector beside ours [default: yes].")
@run.name
@run.folder
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

    chosen = spark_plan.QUICK if quick else spark_plan.FULL
    chosen = replace(chosen, rows=rows or chosen.rows, reps=reps or chosen.reps)
    how = f"{chosen.reps} repetitions of {chosen.rows:,} rows"
    with run.running("spark", quick=quick, how=how, name=name, folder=folder, packages=["pyspark"]) as going:
        brokers: dict[str, Broker] = {
            KAFKA: Kafka(going.scratch / "kafka"),
            OS: Fencepost(going.scratch / "fencepost-os", "os"),
        }
        with run.started(*brokers.values()):
            session = open_session(connector=connector)
            sections = tuple(SPARK_SECTIONS[each] for each in only)
            measure(chosen, session, brokers, going.results, going.say, connector=connector, only=sections)
            session.stop()


def _measure(chosen: plan.Plan, wanted: tuple[str, ...], going: run.Run) -> None:
    results, _, say = going
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
@run.quick
@run.reps
@click.option(
    "--size",
    "sizes",
    type=click.Choice([str(size) for size in clients_plan.FULL.records]),
    multiple=True,
    help="Only records of so many bytes; may be repeated.",
)
@click.option("--only", multiple=True, type=click.Choice(CLIENT_SECTIONS), help="Only this; may be repeated.")
@run.name
@run.folder
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

    chosen = clients_plan.QUICK if quick else clients_plan.FULL
    chosen = replace(chosen, reps=reps or chosen.reps)
    if sizes:
        chosen = replace(chosen, records={size: count for size, count in chosen.records.items() if str(size) in sizes})
    wanted = only or CLIENT_SECTIONS
    how = f"{chosen.reps} repetitions"
    with run.running("clients", quick=quick, how=how, name=name, folder=folder, parts=only) as (results, scratch, say):
        kafka, ours = Kafka(scratch / "kafka"), Fencepost(scratch / "fencepost-os", "os")
        with run.started(kafka, ours):
            rates.warm_up(chosen, kafka, ours, say)
            if "throughput" in wanted:
                rates.measure(chosen, kafka, ours, results, say)
            if "latency" in wanted:
                one_record.measure(chosen, kafka, ours, results, say)
            if "memory" in wanted:
                memory.measure(chosen, ours, results, say)


@main.command()
@run.quick
@run.reps
@click.option("--only", multiple=True, type=click.Choice(list(GROWTH)), help="Only this question; may be repeated.")
@click.option("--most", type=click.IntRange(min=1), help="End each curve at this value.")
@click.option("--kafka/--no-kafka", default=True, help="Apache Kafka beside our server [default: yes].")
@run.name
@run.folder
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

    chosen = QUICK if quick else FULL
    chosen = replace(chosen, reps=reps or chosen.reps)
    if most is not None:
        chosen = chosen.up_to(most)
    how = f"repetitions: {chosen.reps}"
    with run.running("growth", quick=quick, how=how, name=name, folder=folder, parts=only) as (results, scratch, say):
        measure(chosen, only or tuple(GROWTH), scratch, kafka, results, say)


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def report(file: Path) -> None:
    """The tables and the picture of a run that was saved as JSON."""
    run.report(Results.load(file), run.make_console(), file)


if __name__ == "__main__":
    main()
