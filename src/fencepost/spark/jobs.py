"""An exactly-once write of a batch DataFrame, once per job name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fencepost.client.cluster.settings import ClientSettings
from fencepost.spark import columns
from fencepost.spark.sink import BatchReport, Sink
from fencepost.spark.workers import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write(
    df: DataFrame,
    servers: str | ClientSettings,
    *,
    job: str,
    topic: str | None = None,
    settings: Mapping[str, str] | None = None,
    **options: Any,
) -> BatchReport:
    """Write all rows, or none. A job whose name was written before is skipped, and the report says so; `fencepost sink
    reset job.NAME` frees the name. `options` are those of `Sink`."""
    columns.refuse_connect(df)
    use_this_python(df.sparkSession)
    sink = Sink(servers, name=f"job.{job}", topic=topic, settings=settings, **options)
    try:
        return sink.run(df, f"job {job} to {topic or 'topics of the rows'}", 0)
    finally:
        sink.close()
