"""The exactly-once sink: `df.writeStream.foreachBatch(Sink(servers, topic="b", name="enrich"))`.

All tasks of a micro-batch share one transaction, which is open only while they publish. `core/micro_batch.py` decides
the next step, and this module carries it out: fence, look, freeze, publish, commit.

The driver collects small micro-batches with their manifest and publishes them itself, because a second Spark job would
cost more than it saves; a few rows it also encodes (`few.py`). Tasks publish large ones, one task per target partition;
if several map partitions have rows for the same target partition, Spark shuffles the frozen batches first.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from zlib import crc32

from fencepost.client.cluster.patience import PATIENCE
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.options import Compression
from fencepost.client.transactions.micro_batch import MicroBatch, Runner
from fencepost.client.transactions.shared_writer import SharedTransaction
from fencepost.client.transactions.targets import Target, as_dead_letters, describe, reached
from fencepost.core.micro_batch import UNKNOWN, BatchOutcome, Origin, Progress, topics_text
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.kernel import CODECS
from fencepost.spark import columns, publish, tuning
from fencepost.spark.digest import DIGEST_SCHEMA, RowDigest, digest_rows, digest_text
from fencepost.spark.few import FewRowsGuess, collect_few
from fencepost.spark.freeze import (
    MANIFEST_COLUMNS,
    SCHEMA,
    SPOOLED_SCHEMA,
    ChoosePartitions,
    Encoding,
    Manifest,
    encoded_batches,
    freeze_rows,
    manifest_of,
    manifest_of_frozen,
)
from fencepost.spark.origin import is_stopped, keeps_state, origin_of, query_of, short_if_stopped
from fencepost.spark.spool import Spool
from fencepost.spark.workers import use_this_python
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_TOO_LARGE: Final = re.compile(
    "Oversized|OutOfMemory|CapacityError|heap space|exited unexpectedly|MemoryError|Cannot allocate memory|"
    "[rm]e?alloc of size|Direct buffer memory"
)
"""Parts of Spark's errors for an Arrow batch that does not fit into a vector, the JVM's memory or a worker's."""
_TIMES_ASKED: Final = 5
"""How often a micro-batch is frozen again because a row names a topic that was not looked up yet."""
_FIRST_SLACK_MS: Final = 60_000
_COLLECTED: Final = 64 << 20
"""The limit of bytes that all tasks together send to the driver; Spark aborts jobs whose results are too large."""


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


def report_of(sink: str, query: str, outcome: BatchOutcome, took: Mapping[str, float]) -> BatchReport:
    """Return the report of a micro-batch whose manifest is a `Manifest`."""
    manifest: Manifest | None = None if outcome.skipped else outcome.manifest
    by = "nobody"
    if manifest is not None and manifest.batches:
        by = "tasks" if manifest.payloads is None else "driver"
    return BatchReport(
        sink=sink,
        query=query,
        batch=outcome.batch,
        skipped=outcome.skipped,
        rows=manifest.records if manifest else 0,
        bytes=manifest.size if manifest else 0,
        partitions=len(manifest.batches) if manifest else 0,
        attempts=outcome.attempts,
        epoch=outcome.identity.epoch,
        published_by=by,
        milliseconds=dict(took),
    )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a sink. Times are seconds, sizes bytes."""

    topic: str | None = None
    """The target of all rows; without it the column `topic` names each row's target."""
    topics: tuple[str, ...] = ()
    """Topics that the column `topic` may name."""
    adopt: bool | str = False
    """Take the name over from another query, a rolled-back checkpoint or another sink; applies to the first batch. With
    the text that the error SinkNameInUse names, only from the progress record that it was about."""
    create: int | None = None
    """Create a missing target with this many partitions; None: the target must exist."""
    compression: Compression = "none"
    compression_level: int | None = None
    batch_bytes: int = 512 << 10
    """Bytes of a record batch before compression."""
    dead_letter: str | None = None
    """Topic for rows that can never be written; without it they fail the batch."""
    partitioner: ChoosePartitions | None = None
    keep_timestamps: bool = False
    """Take the records' times from the column `timestamp`; otherwise the time of writing, as in Spark's own sink."""
    transaction_timeout: float = 300.0
    """The time limit for publishing; then the server aborts the transaction, so that readers can go on."""
    attempts: int = 3
    driver_bytes: int = 1 << 20
    """The driver publishes micro-batches up to this size; 0: never."""
    patience: float = PATIENCE
    """How long a step waits for an unreachable server, for example while it restarts."""
    accept_recomputed: bool = False
    """Skip a batch of a query that keeps state although it was recomputed with other rows than those in the log."""

    def __post_init__(self) -> None:
        if self.compression not in CODECS:
            raise ConfigError(f"compression={self.compression!r}: expected one of {', '.join(CODECS)}")
        if self.batch_bytes <= 0 or self.driver_bytes < 0:
            raise ConfigError(
                f"batch_bytes={self.batch_bytes}, driver_bytes={self.driver_bytes}: expected more than 0, and 0 or more"
            )
        if self.attempts < 1:
            raise ConfigError(f"attempts={self.attempts}: expected 1 or more")
        if not self.patience >= 0:
            raise ConfigError(f"patience={self.patience}: expected a number of seconds, 0 or more")
        if not 0 < self.transaction_timeout < math.inf:
            raise ConfigError(f"transaction_timeout={self.transaction_timeout}: expected a positive number of seconds")


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
        how = reached(servers, settings)
        self.reports: deque[BatchReport] = deque(maxlen=100)
        self.row_bytes: float | None = None
        """The encoded size of a row in the last non-empty micro-batch."""
        self.expects_little = False
        """The driver published the last micro-batch, so it will probably publish the next one too."""
        self.expects_few = FewRowsGuess()
        self.has_long_rows = False
        """A row was longer than `tuning.LONGEST_SHORT_ROW` when Spark was told that none is."""
        self._stateful: tuple[str, bool] = ("", False)
        """A run of the query, and whether the query keeps state."""
        self._one_at_a_time = threading.Lock()
        self._on_report = on_report or (lambda _report: None)
        self.runner = Runner(
            how,
            name,
            adopt=self.options.adopt,
            attempts=self.options.attempts,
            transaction_timeout=self.options.transaction_timeout,
            patience=self.options.patience,
            on_step=on_step,
        )

    @property
    def report(self) -> BatchReport | None:
        """The last micro-batch's report."""
        return self.reports[-1] if self.reports else None

    @property
    def targets(self) -> str:
        """The target, as the progress record names it."""
        return self.options.topic or "the column topic"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a micro-batch; foreachBatch calls this."""
        columns.refuse_connect(df)
        use_this_python(df.sparkSession)
        query = query_of(df)
        with self._one_at_a_time, short_if_stopped(df, query):
            self.run(df, query, batch_id, origin_of(df, query, batch_id, self.targets))

    def run(self, df: DataFrame, query: str, batch: int, origin: Origin = UNKNOWN) -> BatchReport:
        """Run one micro-batch, from fence to commit."""
        # With the query's hash, because jobs are always batch 0 and should start at different partitions too.
        work = _DataFrameBatch(self, df, start=crc32(query.encode()) + batch)
        if origin is UNKNOWN:
            work.when_slow = "write the rows in several jobs, or let transaction_timeout be longer"
        if origin.run:
            work.query = query
            work.keeps_state = self._keeps_state(df, query, origin.run)
        outcome = self.runner.carry_out(work, query, batch, origin)
        report = report_of(self.name, query, outcome, work.took)
        self.reports.append(report)
        logger.info("%s", report)
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
        try:
            self._on_report(report)
        except Exception:  # the batch is in the log: a failing callback must not end the query
            logger.exception("sink %s: on_report failed for batch %s; the batch is written", self.name, batch)
        if outcome.skipped and origin is not UNKNOWN and not work.was_run_through:
            _run_through(df)
        return report

    def _keeps_state(self, df: DataFrame, query: str, run: str) -> bool:
        if self._stateful[0] != run:
            self._stateful = run, keeps_state(df.sparkSession, query)
        return self._stateful[1]

    def close(self) -> None:
        self.runner.close()

    def __reduce__(self) -> Any:
        """Refuse to be pickled: a classic session calls the sink in this process; only Spark Connect pickles it."""
        raise ConfigError(columns.CONNECT)


@contextmanager
def _stored(rows: DataFrame) -> Iterator[None]:
    """Keep the rows in Spark's storage, memory first, for the length of this block."""
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


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


class _DataFrameBatch(MicroBatch):
    """A micro-batch whose content is a DataFrame's rows."""

    def __init__(self, sink: Sink, df: DataFrame, *, start: int) -> None:
        super().__init__(sink.runner)
        self._start = start
        self.query: str | None = None
        """Spark's id of the streaming query, which may be stopped meanwhile; None for a job."""
        self._slack_ms = 0
        """Raised after the server rejected a record's time: time has passed since the check, or clocks differ."""
        self._names: set[str] = set()
        """The topics that rows are known to name, and the dead-letter topic."""
        self.sink = sink
        self._df = df
        self._frozen: DataFrame | None = None
        self._spool: Spool | None = None
        self._larger_rows = False
        """Arrow batches that were limited by rows alone were too large."""
        self.keeps_state = False
        self.was_run_through = False
        """The rows of a batch that is in the log were computed, so that Spark's state has seen them."""
        self._topic_ids: dict[str, UUID | None] = {}

    def freeze(self, position: str) -> Manifest:
        self._larger_rows |= self._manifest is not None  # a retry: perhaps memory was short
        manifest = self._frozen_here() or self._frozen_by_tasks()
        if manifest.records:
            self.sink.row_bytes = manifest.size / manifest.records
        self.sink.expects_little = manifest.payloads is not None
        self.sink.expects_few.saw(manifest.records, by_driver=self.sink.expects_little)
        written = {where.topic: self._topic_ids[where.topic] for where in manifest.batches}
        return replace(manifest, topics=topics_text(self.runner.cluster_id, written))

    def other_rows(self, last: Progress) -> str:
        options = self.sink.options
        if options.accept_recomputed:
            return ""
        rows = columns.normalised(self._df, topic=options.topic, keep_timestamps=options.keep_timestamps)
        spark = self._df.sparkSession
        limits = tuning.arrow_batches_of(None, limits_bytes=tuning.limits_bytes(spark))
        with tuning.settings(spark, limits):
            found = rows.mapInArrow(digest_rows(), DIGEST_SCHEMA).collect()
        self.was_run_through = True
        digest = digest_text((row[0], row[1]) for row in found)
        return other_rows_text(self.runner.name, last, digest, option="accept_recomputed=True")

    def _frozen_here(self) -> Manifest | None:
        """Encode the rows in this process if they are probably a few; None if they are not."""
        if self._larger_rows or not self.sink.expects_few.is_likely:
            return None
        options = self.sink.options
        chosen = columns.used(self._df.schema, topic=options.topic, keep_timestamps=options.keep_timestamps)
        if options.topic is None and not options.topics and "topic" not in chosen:
            return None
        # The server is asked while Spark works.
        with ThreadPoolExecutor(1, "fencepost-targets") as pool:
            named = self._named_beforehand()
            looking = pool.submit(self._targets, sorted(named), options.create) if named else None
            try:
                rows = collect_few(self._df, chosen, columns.partitions_of(self._df))
            except Exception as error:
                if not _TOO_LARGE.search(str(error)):
                    raise
                rows = None
        manifest = None
        if rows is not None:
            targets = dict(looking.result()) if looking is not None else {}
            if options.topic is None and not options.topics:
                others = {topic for topic in rows.column("topic").to_pylist() if topic is not None} - named
                targets |= self._targets(sorted(others), options.create)
            encoding = self._encoding(targets, tasks=1, absent=None)
            digest = RowDigest() if encoding.digest else None
            frozen = encoded_batches(encoding, 0, iter([rows] if rows.num_rows else ()), digest)
            manifest = manifest_of_frozen(frozen)
            if digest is not None:
                manifest = replace(manifest, digest=digest_text([(digest.count, digest.sum)]))
        if manifest is None or manifest.size > options.driver_bytes:
            self.sink.expects_few.was_wrong()
            return None
        self.sink.expects_few.was_right()
        return manifest

    def _frozen_by_tasks(self) -> Manifest:
        options = self.sink.options
        rows = columns.normalised(self._df, topic=options.topic, keep_timestamps=options.keep_timestamps)
        if self.query is None or options.topic or options.topics:
            return self._frozen_from(rows)
        # The rows are looked through for their topics first. A stream's source is still read once: a second time would
        # take as long again, and Spark would count the rows twice (numInputRows).
        with _stored(rows):
            return self._frozen_from(rows)

    def _frozen_from(self, rows: DataFrame) -> Manifest:
        # A small micro-batch comes back to the driver whole and needs no place in Spark's storage, which would cost
        # more than ten rows do. If it turns out to be large, nothing is published yet: freeze it again, and keep it.
        keep = not self.sink.expects_little
        manifest = self._frozen_once(rows, keep=keep, ask=True)
        for left in reversed(range(_TIMES_ASKED)):
            if not manifest.unasked:
                break
            self._names |= manifest.unasked
            manifest = self._frozen_once(rows, keep=keep, ask=left > 0)
        if keep or manifest.payloads is not None:
            return manifest
        self.sink.expects_little = False
        if manifest.records:
            self.sink.row_bytes = manifest.size / manifest.records
        return self._frozen_from(rows)

    def _frozen_once(self, rows: DataFrame, *, keep: bool, ask: bool) -> Manifest:
        encoding = self._encoding_of(rows, ask=ask)
        try:
            manifest = self._collected(rows, encoding, keep=keep)
        except Exception as error:
            if self._larger_rows or not _TOO_LARGE.search(str(error)):
                raise
            logger.info("sink %s: rows are larger than expected, freezing again: %s", self.sink.name, error)
            self._larger_rows = True
            return self._collected(rows, encoding, keep=keep)
        if manifest.lacks_content:
            self.sink.has_long_rows = True
            return self._collected(rows, encoding, keep=keep)
        return manifest

    def _collected(self, rows: DataFrame, encoding: Encoding, *, keep: bool) -> Manifest:
        """Freeze the rows and collect the manifest; with `keep` files or Spark's storage hold the batches."""
        from pyspark import StorageLevel

        self._thaw()
        spark = self._df.sparkSession
        are_short = self._row_bytes is None and not self._larger_rows and not self.sink.has_long_rows
        if are_short := are_short and "headers" not in rows.columns:
            rows = columns.short_only(rows, tuning.LONGEST_SHORT_ROW)
        with tuning.settings(spark, self._arrow_batches(are_short=are_short)):
            if keep and Spool.is_possible(spark):
                self._spool = Spool(spark)
                found = rows.mapInArrow(freeze_rows(encoding, self._spool.folder), SPOOLED_SCHEMA).collect()
                return manifest_of(found, driver_bytes=self.sink.options.driver_bytes, digest=encoding.digest)
            mapped = rows.mapInArrow(freeze_rows(encoding), SCHEMA)
            if keep:
                self._frozen = mapped.persist(StorageLevel.MEMORY_AND_DISK_DESER)
            with tuning.settings(spark, tuning.WHILE_COLLECTING if keep else {}):
                found = mapped.select(*MANIFEST_COLUMNS).collect()
        return manifest_of(found, driver_bytes=self.sink.options.driver_bytes, digest=encoding.digest)

    @property
    def _row_bytes(self) -> float | None:
        """The row size of the previous micro-batch, unless compression hides it or these rows proved to be larger."""
        hidden = self._larger_rows or self.sink.options.compression != "none"
        return None if hidden else self.sink.row_bytes

    def _arrow_batches(self, *, are_short: bool = False) -> Mapping[str, str]:
        """Return Spark's limits of Arrow batches."""
        limits_bytes = tuning.limits_bytes(self._df.sparkSession)
        return tuning.arrow_batches_of(self._row_bytes, limits_bytes=limits_bytes, are_short=are_short)

    def _encoding_of(self, rows: DataFrame, *, ask: bool) -> Encoding:
        """Return the encoding for tasks. `ask`: let them report topics that were not looked up yet."""
        options = self.sink.options
        tasks = None if self.sink.expects_little else columns.partitions_of(self._df)
        if not self._names:
            self._names = self._first_names(rows)
        targets = self._targets(sorted(self._names), options.create)
        by_column = options.topic is None and not options.topics
        absent = frozenset(self._names - targets.keys()) if by_column and ask else None
        return self._encoding(targets, tasks=tasks, absent=absent)

    def _encoding(self, targets: Mapping[str, Target], *, tasks: int | None, absent: frozenset[str] | None) -> Encoding:
        options = self.sink.options
        return Encoding(
            targets=targets,
            absent=absent,
            topic=options.topic,
            codec=CODECS[options.compression],
            level=options.compression_level,
            batch_bytes=options.batch_bytes,
            small_bytes=min(options.driver_bytes, 256 << 10, _COLLECTED // (tasks or self._tasks_at_most)),
            dead_letter=options.dead_letter,
            choose=options.partitioner,
            map_partitions=tasks,
            slack_ms=self._slack_ms,
            start=self._start,
            digest=self.keeps_state,
        )

    def _first_names(self, rows: DataFrame) -> set[str]:
        """Return the topics to look up before freezing. Recomputed rows may name others then."""
        options = self.sink.options
        names = self._named_beforehand()
        if options.topic or options.topics:
            return names
        if "topic" not in rows.columns:
            raise ConfigError("no target: give the sink a topic, or the DataFrame a column `topic`")
        return names | {row.topic for row in rows.select("topic").distinct().collect() if row.topic is not None}

    def _named_beforehand(self) -> set[str]:
        """Return the topics that the options name."""
        options = self.sink.options
        names = {options.topic} if options.topic else set(options.topics)
        return names if options.dead_letter is None else {*names, options.dead_letter}

    @property
    def _tasks_at_most(self) -> int:
        """A guess for an unknown number of tasks: few if the last micro-batch was small, else perhaps thousands."""
        return 1 if self.sink.expects_little else 1_000

    def _targets(self, names: list[str], create: int | None) -> dict[str, Target]:
        found = self.runner.patiently(lambda: self._described(names, create), "looking at the target topics")
        self._topic_ids |= {name: target.topic_id for name, target in found.items()}
        return found

    def _described(self, names: list[str], create: int | None) -> dict[str, Target]:
        options, admin = self.sink.options, self.runner.admin
        found = {}
        for name in names:
            if name == options.dead_letter:
                found[name] = as_dead_letters(describe(admin, name, create=create))
                continue
            try:
                found[name] = describe(admin, name, create=create)
            except (ConfigError, ServerError) as error:
                # A missing topic that only a row names goes to dead letters, if there are any.
                is_the_rows = isinstance(error, ConfigError) or error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
                if options.dead_letter is None or not is_the_rows or name == options.topic:
                    raise
        return found

    def publish(self, transaction: SharedTransaction, manifest: Manifest) -> None:
        try:
            if manifest.payloads is not None:
                publish.by_driver(self.links(), transaction, manifest)
            elif manifest.places is not None:
                publish.from_files(self._df.sparkSession, self.runner.settings, transaction, manifest)
            elif self._frozen is not None:
                publish.by_tasks(self._frozen, self.runner.settings, transaction, manifest)
        except ServerError as error:
            if error.code is ErrorCode.INVALID_TIMESTAMP:
                self._slack_ms = self._slack_ms * 10 or _FIRST_SLACK_MS
            raise

    def is_unwanted(self) -> bool:
        return self.query is not None and is_stopped(self._df.sparkSession, self.query)

    def records(self, manifest: Manifest) -> Mapping[TopicPartition, int]:
        return {where: manifest.records_of(where) for where in manifest.batches}

    def forget(self) -> None:
        super().forget()
        self._thaw()

    def _thaw(self) -> None:
        if self._frozen is not None:
            self._frozen.unpersist()
            self._frozen = None
        if self._spool is not None:
            self._spool.remove()
            self._spool = None
