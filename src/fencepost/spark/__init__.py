"""fencepost on Spark: a source, an exactly-once sink, a copy pipeline. Python and Arrow only, no jar.

    fencepost.spark.register(spark)                                   # spark.readStream.format("fencepost")
    sink = fencepost.spark.Sink(servers, topic="b", name="enrich")    # df.writeStream.foreachBatch(sink)
    fencepost.spark.write(df, servers, topic="b", job="2026-11-15")   # a batch DataFrame, once per job name

Theory of operation. Everything that decides stands in `core/micro_batch.py` and is tested there without a JVM. Here is what
carries it out, one question per file:

    sink.py      the sink of foreachBatch                    source.py    Spark's data source
    jobs.py      a batch DataFrame, once per job name        options.py   what a user may say to it
    copy.py      topic to topic without decoding             offsets.py   which offsets a micro-batch covers
    readiness.py is everything in place, everywhere?         fetch.py     record batches of a range of offsets
    runner.py    the protocol's steps, against a cluster     arrow.py     record batches → Spark's columns
    origin.py    a micro-batch's query, run and source offsets
    columns.py   a DataFrame's columns, as the sink takes them
    targets.py   what the target topics allow
    freeze.py    rows → record batches, and their manifest
    publishing.py, publish.py   who publishes; one partition, exactly once
    progress.py  the sink's progress topic
    tuning.py    Spark's own settings, while our jobs are planned
    workers.py   which Python Spark's workers run
    permissions.py   what a sink needs to be allowed
    java.py      which Java Spark would take
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencepost.core.micro_batch import CalledTwice, Poisoned, Replaced, SinkNameInUse
    from fencepost.spark.check import check
    from fencepost.spark.copy import Copy
    from fencepost.spark.jobs import write
    from fencepost.spark.sink import BatchReport, Sink
    from fencepost.spark.source import register

_HOME = {
    "BatchReport": "fencepost.spark.sink",
    "CalledTwice": "fencepost.core.micro_batch",
    "Copy": "fencepost.spark.copy",
    "Poisoned": "fencepost.core.micro_batch",
    "Replaced": "fencepost.core.micro_batch",
    "Sink": "fencepost.spark.sink",
    "SinkNameInUse": "fencepost.core.micro_batch",
    "check": "fencepost.spark.check",
    "register": "fencepost.spark.source",
    "write": "fencepost.spark.jobs",
}

__all__ = [
    "BatchReport",
    "CalledTwice",
    "Copy",
    "Poisoned",
    "Replaced",
    "Sink",
    "SinkNameInUse",
    "check",
    "register",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fencepost.spark' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
