"""An exactly-once write of a batch DataFrame, once per job name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError
from fencepost.spark import columns
from fencepost.spark.sink import BatchReport, Sink
from fencepost.spark.workers import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOT_KNOWN: Final = -1
"""In a report: what the process that commits, on the Connect server, does not tell the client."""

_WITHOUT_EFFECT: Final = ("driver_bytes",)
"""Options of `Sink` that the format has no use for: its driver always publishes."""


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
    reset job.NAME` frees the name. `options` are those of `Sink`.

    Over Spark Connect the rows go through `write.format("fencepost")`. Functions among the options must then be named
    as `module:function`, and the report has only `skipped` and `rows`; its other numbers are -1.
    """
    query = f"job {job} to {topic or 'topics of the rows'}"
    if columns.is_connect(df):
        return _by_format(df, query, _as_options(servers, settings, job=job, topic=topic, **options))
    use_this_python(df.sparkSession)
    sink = Sink(servers, name=f"job.{job}", topic=topic, settings=settings, **options)
    try:
        return sink.run(df, query, 0)
    finally:
        sink.close()


def _as_options(servers: str | ClientSettings, settings: Mapping[str, str] | None, **options: Any) -> dict[str, str]:
    """Return the options of the format, which are text."""
    if not isinstance(servers, str):
        raise ConfigError(
            "over Spark Connect the server side connects to the cluster: give `servers` as HOST:PORT,… and the rest as "
            "settings={…}, not as a ClientSettings"
        )
    said = {"kafka.bootstrap.servers": servers}
    said |= {f"kafka.{name.removeprefix('kafka.')}": value for name, value in (settings or {}).items()}
    for name, value in options.items():
        if callable(value):
            raise ConfigError(
                f"{name}: over Spark Connect a function must be named as 'module:function', installed where Spark runs"
            )
        if value is not None and name not in _WITHOUT_EFFECT:
            said[name] = ",".join(value) if isinstance(value, list | tuple | set | frozenset) else str(value)
    return said


def _by_format(df: DataFrame, query: str, options: Mapping[str, str]) -> BatchReport:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    from fencepost.spark.writer import ALREADY

    seen = Observation()
    counted = df.observe(seen, F.count(F.lit(1)).alias("rows"))
    skipped = False
    try:
        counted.write.format("fencepost").mode("append").options(**options, ifWritten="fail").save()
    except Exception as error:
        if ALREADY not in str(error):
            raise
        skipped = True
    return BatchReport(
        sink=f"job.{options['job']}",
        query=query,
        batch=0,
        skipped=skipped,
        rows=0 if skipped else seen.get["rows"],
        bytes=_NOT_KNOWN,
        partitions=_NOT_KNOWN,
        attempts=_NOT_KNOWN,
        epoch=_NOT_KNOWN,
        published_by="driver",
    )
