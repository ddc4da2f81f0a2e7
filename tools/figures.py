"""A tool that writes the tables of figures in README.md and docs/benchmarks.md from the newest files in bench/results.

    python -m tools.figures            prints them
    python -m tools.figures --write    puts them into the pages; a test fails when one is out of date

Each row comes from the newest full run that has both of its series, or from the newest quick run if there is no full
one. A row that no run has is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import own
from bench.brokers import ALWAYS, KAFKA, OS
from bench.results import Labels, Results, Series
from bench.server import backup, footprint, latency, restart, scrape, throughput
from bench.side_by_side.plan import CONFLUENT, name
from bench.side_by_side.throughput import READING, SENDING
from bench.spark import names as spark
from tools.section import ROOT, Section

RESULTS: Final = ROOT / "bench" / "results"
_BEGIN, _END = "<!-- figures: written by tools/figures.py -->", "<!-- end of the figures -->"


class Peer(NamedTuple):
    target: str
    shown: str


class Row(NamedTuple):
    what: str
    section: str
    ours: str
    peer: Peer | None
    part: str
    """The command of `python -m bench`; with a dot in front, a separate program there."""
    labels: tuple[str, ...] = ()
    """All of these are among the series' labels."""


_BROKER: Final = Peer(KAFKA, "Apache Kafka")
_CLIENT: Final = Peer(CONFLUENT, "confluent-kafka")
_CLIENT_TO_KAFKA: Final = Peer(CONFLUENT, "confluent-kafka to Apache Kafka")
_CONNECTOR: Final = Peer(spark.CONNECTOR, "Spark's connector, at least once")
_NO_BACKUP: Final = Peer(backup.WITHOUT, "without one")
_BACKUP: Final = ".server.backup"
_TEN: Final = "10 GiB, sync always"
_BESIDE_P50: Final = (backup.STEADY, _TEN, "p50")
_BESIDE_P99: Final = (backup.STEADY, _TEN, "p99")
_FORMATS: Final = "spark --only format --only small-format"
_FOREACHBATCH: Final = Peer(spark.way_on(spark.BY_FOREACHBATCH, KAFKA), "`foreachBatch`")
_ONE_CLIENT: Final = ("confluent", "100 B", "none")
_PLAIN: Final = ("none", "no key", "100 B")
_READ: Final = ("none", "100 B")


def _by(way: str) -> str:
    return spark.way_on(way, KAFKA)


HEADLINES: Final = (
    Row("`send` to Apache Kafka, 100 B", SENDING, name("fencepost", KAFKA), _CLIENT, "clients", _PLAIN),
    Row("read as Arrow from Apache Kafka, 100 B", READING, name("fencepost_arrow", KAFKA), _CLIENT, "clients", _READ),
    Row("Spark, topic to topic, exactly once", spark.THROUGH, spark.OURS_ON_KAFKA, _CONNECTOR, "spark"),
    Row("one acknowledged record, p50", latency.SECTION, OS, _BROKER, "server", ("p50",)),
    Row("one acknowledged record, p99", latency.SECTION, OS, _BROKER, "server", ("p99",)),
    Row("server start to the first answer, warm", footprint.START, OS, _BROKER, "server"),
    Row("take-over from a writing owner, p50", own.TAKE_OVER, OS, None, ".own", ("writing owner", "p50")),
    Row("take-over from a writing owner, p99", own.TAKE_OVER, OS, None, ".own", ("writing owner", "p99")),
)
OTHERS: Final = (
    Row("`send` to fencepost's server, 100 B", SENDING, name("fencepost", OS), _CLIENT_TO_KAFKA, "clients", _PLAIN),
    Row("`send_arrow` to Apache Kafka, 100 B", SENDING, name("fencepost_arrow", KAFKA), _CLIENT, "clients", _PLAIN),
    Row("Spark, copy, exactly once", spark.COPY, spark.OURS_ON_KAFKA, _CONNECTOR, "spark"),
    Row("Spark, 10 rows, beyond an empty batch", spark.SMALL, spark.OURS_ON_KAFKA, None, "spark"),
    Row("Spark, `format` to Apache Kafka, inline", spark.FORMAT, _by(spark.INLINE), _FOREACHBATCH, _FORMATS),
    Row("Spark, `format` to Apache Kafka, staged", spark.FORMAT, _by(spark.STAGED), _FOREACHBATCH, _FORMATS),
    Row("Spark, 10 rows by `format`, beyond a dropped batch", spark.SMALL_FORMAT, spark.OURS_ON_KAFKA, None, _FORMATS),
    Row("confluent-kafka writes, 100 B", throughput.PRODUCE, OS, _BROKER, "server", _ONE_CLIENT),
    Row("confluent-kafka reads, 100 B", throughput.FETCH, OS, _BROKER, "server", _ONE_CLIENT),
    Row("server memory, idle", footprint.MEMORY, OS, _BROKER, "server"),
    Row("server start to the first answer by HTTP, warm", footprint.START_HTTP, OS, None, "server"),
    Row("server memory, idle, after a scrape", footprint.MEMORY_SCRAPED, OS, None, "server"),
    Row("scrape every second, 1,000 partitions, 100 groups", scrape.SECTION, OS, None, "server", (scrape.QUIET,)),
    Row("the same while everything changes", scrape.SECTION, OS, None, "server", (scrape.BUSY,)),
    Row("restart after `kill -9`, 10 GiB, cold", restart.SECTION, OS, None, "server --only restart", ("10 GiB, cold",)),
    Row("producer that floods, during a backup", backup.RATE, backup.DURING, _NO_BACKUP, _BACKUP, (backup.FLAT_OUT,)),
    Row("producer at 50 MB/s, during a backup", backup.RATE, backup.DURING, _NO_BACKUP, _BACKUP, (backup.STEADY, _TEN)),
    Row("one acknowledged record beside it, p50", backup.HEALTHY, backup.DURING, _NO_BACKUP, _BACKUP, _BESIDE_P50),
    Row("one acknowledged record beside it, p99", backup.HEALTHY, backup.DURING, _NO_BACKUP, _BACKUP, _BESIDE_P99),
    Row("backup of 10 GiB at 50 MB/s", backup.SECONDS, ALWAYS, None, _BACKUP, (backup.FIRST, _TEN)),
    Row("the next backup", backup.SECONDS, ALWAYS, None, _BACKUP, (backup.SECOND, _TEN)),
    Row("restore of 10 GiB", backup.SECONDS, ALWAYS, None, _BACKUP, (backup.RESTORE, _TEN)),
    Row("start of the restored server", backup.SECONDS, ALWAYS, None, _BACKUP, (backup.WRITTEN, _TEN)),
    Row("take-over from an idle owner, p50", own.TAKE_OVER, OS, None, ".own", ("idle owner", "p50")),
    Row("take-over from an idle owner, p99", own.TAKE_OVER, OS, None, ".own", ("idle owner", "p99")),
    Row("take-over from a flooding owner, p50", own.TAKE_OVER, OS, None, ".own", ("flooding owner", "p50")),
    Row("take-over from a flooding owner, p99", own.TAKE_OVER, OS, None, ".own", ("flooding owner", "p99")),
)
PAGES: Final = {
    Section(ROOT / "README.md", _BEGIN, _END): HEADLINES,
    Section(ROOT / "docs" / "benchmarks.md", _BEGIN, _END): HEADLINES + OTHERS,
}


class Found(NamedTuple):
    ours: Series
    peer: Series | None
    run: str
    quick: bool


def table(rows: Sequence[Row]) -> str:
    runs = sorted(RESULTS.glob("*.json"), key=_worth, reverse=True)
    loaded = [(path.stem, Results.load(path)) for path in runs]
    lines = ["| what | fencepost | compared with | run |", "|---|---|---|---|"]
    quick = False
    for row in rows:
        if (found := _find(row, loaded)) is None:
            continue
        peer = f"{_figure(found.peer)} ({row.peer.shown})" if found.peer is not None and row.peer is not None else "-"
        program = f"bench{row.part}" if row.part.startswith(".") else f"bench {row.part}"
        command = f"python -m {program}{' --quick' if found.quick else ''}"
        lines.append(f"| {row.what} | {_figure(found.ours)} | {peer} | `{command}`, {found.run} |")
        quick |= found.quick
    if quick:
        lines += ["", "Runs whose name ends in `quick` are short: a first look, not a claim."]
    return "\n".join(lines)


def _worth(path: Path) -> tuple[bool, str]:
    """Return the sort key: full runs above quick ones, then by date."""
    results = Results.load(path)
    return not _is_quick(results), str(results.about.get("date", ""))


def _is_quick(results: Results) -> bool:
    return str(results.about.get("run", "")).startswith("quick")


def _find(row: Row, runs: list[tuple[str, Results]]) -> Found | None:
    for stem, results in runs:
        for labels in results.labels(row.section):
            if not set(row.labels) <= set(labels):
                continue
            ours = results.get(row.section, labels, row.ours)
            peer = _peer(row, results, labels)
            if ours is not None and (peer is not None or row.peer is None):
                return Found(ours, peer, stem, _is_quick(results))
    return None


def _peer(row: Row, results: Results, labels: Labels) -> Series | None:
    return results.get(row.section, labels, row.peer.target) if row.peer is not None else None


def _figure(series: Series) -> str:
    value = series.median
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {series.unit}"


if __name__ == "__main__":
    for section, rows in PAGES.items():
        if sys.argv[1:] == ["--write"]:
            section.write(table(rows))
        else:
            print(table(rows), end="\n\n")
