"""fencepost on Spark: a source, an exactly-once sink, a copy pipeline. Python and Arrow only, no jar.

    fencepost.spark.register(spark)                                   # spark.readStream.format("fencepost")
    sink = fencepost.spark.Sink(servers, topic="b", name="enrich")    # df.writeStream.foreachBatch(sink)
    fencepost.spark.write(df, servers, topic="b", job="2026-11-15")   # a batch DataFrame, once per job name

`core/micro_batch/` decides the steps of a micro-batch, and its tests need no JVM. `client/micro_batch/` carries the
steps out against a cluster. Only the modules here know Spark:

    source.py, source_options.py     the data source, and its options
    java_pattern.py                  subscribePattern: Java's regular expressions as Python's
    offsets.py, arrow.py             the offsets of a micro-batch; record batches as Spark's columns
    sink.py, jobs.py, copy.py        the sink of foreachBatch; a batch DataFrame; topic to topic without decoding
    writer.py, writer_options.py     the sink as a format, and its options
    stage.py                         its record batches on the way to the commit: in a message, or through a topic
    option_values.py                 numbers, times and truth values in options
    origin.py, columns.py            a micro-batch's query, run and source offsets; the columns that the sink accepts
    freeze.py, publish.py            rows to record batches; publish them from the driver or from tasks
    digest.py                        a digest of rows, for queries that keep state
    few.py, spool.py                 a few rows, which the driver encodes; frozen batches in files of a local master
    readiness.py                     checks before a job, also of the permissions that a sink needs
    tuning.py, workers.py, java.py   Spark's settings, its Python, its Java
    early_connect.py, daemon.py      `fencepost-python`, which connects before it imports; workers that start quickly
    shipping.py                      readers and writers on their way to the workers
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.core.micro_batch.protocol import CalledTwice, ContentLost, Poisoned, Replaced, SinkNameInUse
    from fencepost.spark.copy import Copy
    from fencepost.spark.jobs import write
    from fencepost.spark.readiness import check
    from fencepost.spark.sink import BatchReport, Sink
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
    "write": "fencepost.spark.jobs",
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
