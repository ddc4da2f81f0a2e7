"""The exactly-once sink: `df.writeStream.foreachBatch(Sink(servers, topic="b", name="enrich"))`.

All tasks of a micro-batch share one transaction, which is open only while they publish. `core/micro_batch/` decides
the next step, and this module carries it out: fence, look, freeze, publish, commit.

The driver encodes and publishes a few rows itself (`few.py`), because Spark jobs would cost more than they save. All
others are frozen by tasks and published by tasks, one per target partition. The frozen batches wait in Spark's storage
meanwhile, or in files where all tasks run on one machine (`spool.py`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import Advice, Content, Runner
from fencepost.client.micro_batch.targets import Target, reached
from fencepost.client.transactions.shared_writer import LeaderChannels, SharedTransaction
from fencepost.core.micro_batch.protocol import UNKNOWN, BatchOutcome, FrozenContent, Origin, Progress, topics_text
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.spark import columns, few, publish, tuning
from fencepost.spark.digest import DIGEST_SCHEMA, digest_rows, digest_text
from fencepost.spark.few import Few, FewRowsGuess, collect_few
from fencepost.spark.freeze import (
    MANIFEST_COLUMNS,
    SCHEMA,
    SPOOLED_SCHEMA,
    Encoder,
    Encoding,
    Manifest,
    freeze_rows,
    manifest_of,
    manifest_of_frozen,
)
from fencepost.spark.options import SinkOptions
from fencepost.spark.origin import is_stopped, keeps_state, origin_of, query_of, short_if_stopped
from fencepost.spark.spool import Spool
from fencepost.spark.workers import CONNECT, is_connect, refuse_connect, use_this_python
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_FIRST_SLACK_MS: Final = 60_000
_LEAST_ESTIMATE: Final = 28
"""Spark's estimate of the bytes of a row with one string: no row with a value has a smaller one."""
_NOT_KNOWN: Final = -1
"""In a report: what the process that commits, on the Connect server, does not tell the client."""

_WITHOUT_EFFECT: Final = ("driver_bytes",)
"""Options of `Sink` that the format has no use for: its driver always publishes."""
_ADVICE_FOR_JOBS: Final = Advice(when_slow="write the rows in several jobs, or let transaction_timeout be longer")


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one micro-batch; Spark itself reports nothing for foreachBatch."""

    sink: str
    query: str
    batch: int
    skipped: bool
    """The batch was already in the log, from before a restart."""
    rows: int
    bytes: int
    partitions: int
    attempts: int
    epoch: int
    published_by: str
    """`driver`, `tasks`, or `nobody` if there was nothing to publish."""
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    """Step → its duration, over all attempts."""

    def __str__(self) -> str:
        if self.skipped:
            return f"sink {self.sink}: batch {self.batch} was already in the log, skipped"
        steps = ", ".join(f"{step} {took:.0f}" for step, took in self.milliseconds.items())
        again = f", {self.attempts} attempts" if self.attempts > 1 else ""
        return (
            f"sink {self.sink}: batch {self.batch}, {self.rows} rows, {self.bytes} bytes, {self.partitions} partitions "
            f"by {self.published_by}, epoch {self.epoch}{again}; ms: {steps}"
        )


def report_batch(
    sink: str,
    query: str,
    outcome: BatchOutcome,
    manifest: Manifest,
    took: Mapping[str, float],
    told: Callable[[BatchReport], object] | None,
) -> BatchReport:
    """Report a micro-batch with this content, which is not written if it was skipped: log the report, and tell the
    user's function. Return it."""
    if outcome.skipped:
        manifest = Manifest({})
    report = BatchReport(
        sink=sink,
        query=query,
        batch=outcome.batch,
        skipped=outcome.skipped,
        rows=sum(manifest.records.values()),
        bytes=manifest.size,
        partitions=len(manifest.batches),
        attempts=outcome.attempts,
        epoch=outcome.identity.epoch,
        published_by=manifest.published_by,
        milliseconds=dict(took),
    )
    logger.info("%s", report)
    try:
        if told is not None:
            told(report)
    except Exception:  # the batch is in the log: a failing callback must not end the query
        logger.exception("sink %s: on_report failed for batch %s; the batch is written", sink, outcome.batch)
    return report


class Sink:
    """The sink to pass to `foreachBatch`. `name` is its identity across restarts: one name per query.

    `report` is the last micro-batch's `BatchReport`, `reports` has the last hundred. The sink calls `on_report` with
    each report, and `on_step` with the name of each step before it.
    """

    def __init__(
        self,
        servers: str | ClientSettings,
        *,
        name: str,
        topic: str | None = None,
        settings: Mapping[str, str] | None = None,
        on_step: Callable[[str], object] | None = None,
        on_report: Callable[[BatchReport], object] | None = None,
        **options: Any,
    ) -> None:
        """`settings`: connection settings by Kafka's names, with or without the prefix `kafka.`. `options`: the fields
        of `SinkOptions`."""
        try:
            self.options = SinkOptions(topic=topic, **options)
        except TypeError as error:
            known = ", ".join(SinkOptions.__slots__)
            raise ConfigError(f"{error}; the options of a sink are {known}") from error
        self.name = name
        self.reports: deque[BatchReport] = deque(maxlen=100)
        self._habits = RowHabits()
        self._stateful: tuple[str, bool] = ("", False)
        """A run of the query, and whether the query keeps state."""
        self._one_at_a_time = threading.Lock()
        self._on_report = on_report
        self.runner = self.options.runner(reached(servers, settings), name, on_step)

    @property
    def report(self) -> BatchReport | None:
        """The last micro-batch's report."""
        return self.reports[-1] if self.reports else None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; foreachBatch calls this."""
        refuse_connect(df)
        use_this_python(df.sparkSession)
        query = query_of(df)
        with self._one_at_a_time, short_if_stopped(df, query):
            self.run(df, query, batch_id, origin_of(df, query, batch_id, self.options.targets))

    def run(self, df: DataFrame, query: str, batch: int, origin: Origin = UNKNOWN) -> BatchReport:
        """Run one micro-batch, from fence to commit."""
        content = DataFrameContent(self.runner, self.options, self._habits, df, query, batch)
        if origin is UNKNOWN:
            content.advice = _ADVICE_FOR_JOBS
        if origin.run:
            content.query = query
            content.keeps_state = self._keeps_state(df, query, origin.run)
        outcome = self.runner.carry_out(content, query, batch, origin)
        report = report_batch(self.name, query, outcome, content.manifest, self.runner.took, self._told)
        if origin is not UNKNOWN and not outcome.compared:
            logger.warning(
                "sink %s: batch %s was skipped by its number alone, because its progress record or this Spark has no "
                "source offsets. If the checkpoint was restored from a backup, rows may be missing",
                self.name,
                batch,
            )
        if outcome.missing:
            logger.warning(
                "sink %s: batch %s follows batch %s. If your function passed the %s batches between them to the sink, "
                "they are lost: was the target's cluster restored from a backup?",
                self.name,
                batch,
                batch - outcome.missing - 1,
                outcome.missing,
            )
        if outcome.skipped and origin is not UNKNOWN and not content.was_run_through:
            _run_through(df)
        return report

    def _told(self, report: BatchReport) -> None:
        self.reports.append(report)
        if self._on_report is not None:
            self._on_report(report)

    def _keeps_state(self, df: DataFrame, query: str, run: str) -> bool:
        if self._stateful[0] != run:
            self._stateful = run, keeps_state(df.sparkSession, query)
        return self._stateful[1]

    def close(self) -> None:
        self.runner.close()

    def __reduce__(self) -> Any:
        """Refuse to be pickled: a classic session calls the sink in this process; only Spark Connect pickles it."""
        raise ConfigError(CONNECT)


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
    if is_connect(df):
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


def other_rows_text(sink: str, last: Progress, digest: str, *, option: str) -> str:
    """Say that the recomputed rows are not those of the progress record; empty if they are."""
    if digest == last.digest:
        return ""
    return (
        f"sink {sink!r} has already written batch {last.batch} of query {last.query}, and recomputed it has other "
        f"rows: {_rows_of(digest)} now, {_rows_of(last.digest)} in the log. The query keeps state, so later rows "
        "would be missing or repeated if the batch were skipped. Did a table change that the query reads, or does it "
        "use random values, or a function that depends on the order of rows? If the query can be made to come out as "
        f"before, restart it. If the difference does not matter for the state (the last digit of a sum of floats), "
        f"{option} skips the batch. adopt=True writes it again, which repeats the rows that both have"
    )


def _rows_of(digest: str) -> str:
    _, _, rest = digest.partition("-")
    count, _, hashed = rest.partition("-")
    return f"{count} rows (hash {hashed})"


def _run_through(df: DataFrame) -> None:
    """Compute the rows and drop them. The log has them, but Spark's state stores have not committed this batch, and its
    watermark has not passed it. Without this a stateful query would fail (STATE_STORE_COMMIT_VALIDATION_FAILED), and
    again after every restart."""
    df.write.format("noop").mode("overwrite").save()


@dataclass(slots=True)
class RowHabits:
    """What the micro-batches of a sink were like; it decides how the next one is frozen, and not what is written."""

    few: FewRowsGuess = field(default_factory=FewRowsGuess)
    are_long: bool = False
    """A row was longer than `tuning.LONGEST_SHORT_ROW` when Spark was told that none is."""


class DataFrameContent(Content):
    """A micro-batch whose content is a DataFrame's rows."""

    def __init__(
        self, runner: Runner, options: SinkOptions, habits: RowHabits, df: DataFrame, query: str, batch: int
    ) -> None:
        self.manifest = Manifest({})
        self.query: str | None = None
        """Spark's id of the streaming query, which may be stopped meanwhile; None for a job."""
        self.keeps_state = False
        self.was_run_through = False
        """The rows of a batch that is in the log were computed, so that Spark's state has seen them."""
        self._runner = runner
        self._options = options
        self._habits = habits
        self._df = df
        # With the query's hash, because jobs are always batch 0 and should start at different partitions too.
        self._start = crc32(query.encode()) + batch
        self._slack_ms = 0
        """Raised after the server rejected a record's time: time has passed since the check, or clocks differ."""
        self._frozen: DataFrame | None = None
        self._spool: Spool | None = None
        self._finder = options.finder(runner.settings, runner.name)
        self._targets: dict[str, Target] = {}

    # -- freezing ---------------------------------------------------------------------------------------------

    def freeze(self, position: str) -> FrozenContent:
        options, tasks = self._options, columns.partitions_of(self._df)
        chosen = columns.used(self._df.schema, topic=options.topic, keep_timestamps=options.keep_timestamps)
        if options.topic is None and not options.topics and "topic" not in chosen:
            raise ConfigError("no target: give the sink a topic, or the DataFrame a column `topic`")
        self.close()
        self._targets = {}  # they may have changed since an earlier attempt
        limits = few.limits_of(tasks)
        found = self._frozen_here(chosen, limits) if limits is not None and self._are_few(limits) else None
        self.manifest = found or self._frozen_by_tasks(tasks)
        were_few = limits is not None and sum(self.manifest.records.values()) < limits.rows
        self._habits.few.saw(few=were_few and 0 < options.driver_bytes >= self.manifest.size)
        written = {where.topic for where in self.manifest.batches}
        self._targets |= self._finder.of_rows(written - self._targets.keys(), self._runner.admin)
        ids = {topic: self._targets[topic].topic_id for topic in written & self._targets.keys()}
        return FrozenContent(topics=topics_text(self._runner.cluster_id, ids), digest=self.manifest.digest)

    def _are_few(self, limits: Few) -> bool:
        """Guess whether the rows are a few; a sink's first ones by Spark's own estimate of their size."""
        most = min(self._options.driver_bytes, limits.rows * _LEAST_ESTIMATE)
        if self._habits.few.were_few is None:
            return most > 0 and columns.estimated_bytes(self._df) <= most
        return self._habits.few.is_likely

    def _frozen_here(self, chosen: Mapping[str, str], limits: Few) -> Manifest | None:
        """Encode the rows in this process; None if they are more or larger than a few."""
        # The server is asked while Spark works.
        with ThreadPoolExecutor(1, "fencepost-targets") as pool:
            looking = pool.submit(self._finder.of_options, self._runner.admin)
            rows = collect_few(self._df, chosen, limits)
        self._targets |= looking.result()
        manifest = None
        if rows is not None:
            encoding = self._encoding(tasks=1)
            if encoding.find is not None:
                encoding = replace(encoding, find=partial(self._finder.of_rows, admin=self._runner.admin))
            encoder = Encoder(encoding, 0)
            manifest = manifest_of_frozen(encoder.encode([rows] if rows.num_rows else ()))
            self._targets |= encoder.targets
            if encoder.digest is not None:
                manifest = replace(manifest, digest=digest_text([(encoder.digest.count, encoder.digest.sum)]))
        if manifest is None or manifest.size > self._options.driver_bytes:
            self._habits.few.was_wrong()
            return None
        self._habits.few.was_right()
        return manifest

    def _frozen_by_tasks(self, tasks: int | None) -> Manifest:
        rows = self._normalised()
        self._targets |= self._finder.of_options(self._runner.admin)
        if not self._habits.are_long and "headers" not in rows.columns:
            manifest = self._collected(columns.short_only(rows, tuning.LONGEST_SHORT_ROW), tasks, are_short=True)
            if not manifest.lacks_content:
                return manifest
            self._habits.are_long = True
        return self._collected(rows, tasks, are_short=False)

    def _collected(self, rows: DataFrame, tasks: int | None, *, are_short: bool) -> Manifest:
        """Freeze the rows and collect the manifest; files or Spark's storage hold the batches."""
        from pyspark import StorageLevel

        self.close()
        spark, encoding = self._df.sparkSession, self._encoding(tasks)
        limits = tuning.arrow_batches(are_short=are_short, limits_bytes=tuning.limits_bytes(spark))
        if Spool.is_possible(spark):
            self._spool = Spool(spark)
            with tuning.settings(spark, limits):
                found = rows.mapInArrow(freeze_rows(encoding, self._spool.folder), SPOOLED_SCHEMA).collect()
        else:
            with tuning.settings(spark, {**limits, **tuning.WHILE_COLLECTING}):
                self._frozen = rows.mapInArrow(freeze_rows(encoding), SCHEMA)
                self._frozen.persist(StorageLevel.MEMORY_AND_DISK_DESER)
                found = self._frozen.select(*MANIFEST_COLUMNS).collect()
        return manifest_of(found, digest=encoding.digest)

    def _normalised(self) -> DataFrame:
        options = self._options
        return columns.normalised(self._df, topic=options.topic, keep_timestamps=options.keep_timestamps)

    def _encoding(self, tasks: int | None) -> Encoding:
        return Encoding.of(
            self._options,
            self._finder,
            self._targets,
            choose=self._options.partitioner,
            map_partitions=tasks,
            slack_ms=self._slack_ms,
            start=self._start,
            digest=self.keeps_state,
        )

    def other_rows(self, last: Progress) -> str:
        if self._options.accept_recomputed:
            return ""
        spark = self._df.sparkSession
        with tuning.settings(spark, tuning.arrow_batches(are_short=False, limits_bytes=tuning.limits_bytes(spark))):
            found = self._normalised().mapInArrow(digest_rows(), DIGEST_SCHEMA).collect()
        self.was_run_through = True
        digest = digest_text((row[0], row[1]) for row in found)
        return other_rows_text(self._runner.name, last, digest, option="accept_recomputed=True")

    # -- publishing -------------------------------------------------------------------------------------------

    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        manifest, settings = self.manifest, self._runner.settings
        if not manifest.batches:
            return
        try:
            if manifest.published_by == "driver":
                publish.by_driver(links, transaction, manifest.batches)
            elif self._spool is not None:
                publish.from_files(self._df.sparkSession, settings, transaction, manifest)
            elif self._frozen is not None:
                publish.by_tasks(self._frozen, settings, transaction, manifest)
        except ServerError as error:
            if error.code is ErrorCode.INVALID_TIMESTAMP:
                self._slack_ms = self._slack_ms * 10 or _FIRST_SLACK_MS
            raise

    def is_unwanted(self) -> bool:
        return self.query is not None and is_stopped(self._df.sparkSession, self.query)

    def records(self) -> Mapping[TopicPartition, int]:
        return self.manifest.records

    def close(self) -> None:
        if self._frozen is not None:
            self._frozen.unpersist()
            self._frozen = None
        if self._spool is not None:
            self._spool.remove()
            self._spool = None
