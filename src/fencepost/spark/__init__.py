"""fencepost on Spark: a source, an exactly-once sink, a copy pipeline. Python and Arrow only, no jar.

    fencepost.spark.register(spark)                                   # spark.readStream.format("fencepost")
    sink = fencepost.spark.Sink(servers, topic="b", name="enrich")    # df.writeStream.foreachBatch(sink)
    fencepost.spark.write(df, servers, topic="b", job="2026-11-15")   # a batch DataFrame, once per job name

`core/micro_batch/` decides the steps of a micro-batch, and its tests need no JVM. `client/micro_batch/` carries the
steps out against a cluster. Only the modules here know Spark:

    source.py, offsets.py       the data source; the offsets of a micro-batch
    sink.py, writer.py          the sink of foreachBatch and of a batch DataFrame; the sink as a format
    copy.py                     topic to topic without decoding
    options.py, java_pattern.py the options of source and sink; subscribePattern, whose expressions are Java's
    columns.py                  the columns that the source gives and the sink accepts
    origin.py, digest.py        a micro-batch's query, run and source offsets; a digest of rows, for queries with state
    few.py, freeze.py           a few rows, which the driver encodes; all others, which tasks encode
    spool.py, stage.py          encoded batches on their way: in files of a local master; in messages or the stage topic
    publish.py                  record batches to the targets, by the driver or by tasks
    readiness.py, tuning.py     checks before a job, also of the permissions that a sink needs; Spark's settings
    workers.py                  Spark's Python and Java, and how readers and writers reach its workers
    early_connect.py, daemon.py `fencepost-python`, which connects before it imports; workers that start quickly
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.core.micro_batch.protocol import CalledTwice, ContentLost, Poisoned, Replaced, SinkNameInUse
    from fencepost.spark.copy import Copy
    from fencepost.spark.readiness import check
    from fencepost.spark.sink import BatchReport, Sink, write
    from fencepost.spark.source import register

_HOME = {
    "BatchReport": "fencepost.spark.sink",
    "CalledTwice": "fencepost.core.micro_batch.protocol",
    "ContentLost": "fencepost.core.micro_batch.protocol",
    "Copy": "fencepost.spark.copy",
    "Poisoned": "fencepost.core.micro_batch.protocol",
    "Replaced": "fencepost.core.micro_batch.protocol",
    "Sink": "fencepost.spark.sink",
    "SinkNameInUse": "fencepost.core.micro_batch.protocol",
    "check": "fencepost.spark.readiness",
    "register": "fencepost.spark.source",
    "write": "fencepost.spark.sink",
}

__all__ = [
    "BatchReport",
    "CalledTwice",
    "ContentLost",
    "Copy",
    "Poisoned",
    "Replaced",
    "Sink",
    "SinkNameInUse",
    "check",
    "register",
    "write",
]


if not TYPE_CHECKING:  # hidden from type checkers: to them every misspelt name would be a name of type Any

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'fencepost.spark' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def _on_import() -> None:
    from fencepost.spark.early_connect import is_started_by_spark

    if not is_started_by_spark():  # its processes have to connect soon: they import no more than they need
        from fencepost.spark.workers import let_spark_find_formats

        let_spark_find_formats()


_on_import()


def __dir__() -> list[str]:
    return sorted(__all__)
