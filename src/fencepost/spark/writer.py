"""`df.writeStream.format("fencepost")` and `df.write.format("fencepost")`: the sink as a Python data source (PIPE-2).

It reaches where foreachBatch does not: Spark Connect, and Declarative Pipelines, whose sinks are a format's name.

A task only *freezes*: it turns its rows into record batches and returns them in its commit message. If they are too
large for that, it writes them to the sink's stage topic, and the message has their places (`spark/stage.py`). It
changes nothing that readers of the targets see, so retries, speculation and tasks of a driver that was replaced are
harmless. Spark hands the messages of the winning attempts to `commit`, which runs in a process of its own on the
driver, once per micro-batch. There the steps of `core/micro_batch/` are taken: look, fence, look, publish, commit.
`abort` has nothing to undo.

The progress topic and the transactional id are those of `Sink`, so a query can move between `foreachBatch` and
`format` under the same name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from zlib import crc32

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from fencepost.client.micro_batch.runner import Advice, Content, Runner
from fencepost.client.micro_batch.targets import Target, TargetFinder
from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX, Staged, clear_stage, delete_stage, ends_of, share_of
from fencepost.client.read.ranges import DataLost
from fencepost.client.transactions.shared_writer import LeaderChannels, SharedTransaction
from fencepost.core.micro_batch.protocol import (
    UNKNOWN,
    BatchOutcome,
    ContentLost,
    FrozenContent,
    Origin,
    Poisoned,
    Progress,
    topics_text,
)
from fencepost.errors import ConfigError, CorruptBatch, FencepostError, UnsupportedFormat
from fencepost.spark import columns
from fencepost.spark.digest import digest_text
from fencepost.spark.freeze import Encoder, Encoding, FrozenBatch, Manifest, manifest_of_frozen
from fencepost.spark.options import WriterOptions, imported, parse_writer
from fencepost.spark.origin import QUERY_ID, RUN_ID, checkpoint_hash, checkpoint_keeps_state
from fencepost.spark.publish import by_threads
from fencepost.spark.sink import other_rows_text, report_batch
from fencepost.spark.stage import StageWriter, carried
from fencepost.spark.workers import Shipped
from fencepost.types import TopicPartition

try:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 hands over rows, one by one
    ARROW = False
    DataSourceArrowWriter, DataSourceStreamArrowWriter = DataSourceWriter, DataSourceStreamWriter
else:
    ARROW = True

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's local property: the micro-batch that a task belongs to."""
_RUN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ROWS: Final = 1_000
"""Rows of an Arrow batch, where Spark hands over rows."""
_JOB_BATCH: Final = 0
ALREADY: Final = "fencepost has the job already:"
"""How the error begins for a job that was written before, with ifWritten=fail."""


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamWriter:
    """Return the writer of a stream; Spark's output modes all append here, as with its own Kafka sink."""
    return StreamWriter(parse_writer(options, streaming=True), schema)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch DataFrame."""
    if overwrite:
        raise ConfigError('mode("overwrite"): a log cannot be overwritten; use mode("append")')
    return BatchWriter(parse_writer(options, streaming=False), schema)


@dataclass(frozen=True)
class FrozenRows(WriterCommitMessage):  # type: ignore[misc]
    """The commit message of a task: its rows as record batches, and the micro-batch that they belong to."""

    query: str
    run: str
    batch: int
    map_partition: int
    batches: tuple[FrozenBatch, ...]
    topic_ids: Mapping[str, UUID | None] = field(default_factory=dict)
    """The ids of the topics that the task knew."""
    digest: tuple[int, int] | None = None
    """The number of rows and their digest, if the query keeps state."""


class _Writer(Shipped):
    """The part that both writers share. Spark builds a writer before each micro-batch, pickles it for the tasks, and
    builds another one for the commit."""

    writes_once = False

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self.options = options
        sink = options.sink
        self._columns = columns.used(schema, topic=sink.topic, keep_timestamps=sink.keep_timestamps)
        self._schema = schema
        if sink.topic is None and not sink.topics and "topic" not in self._columns:
            raise ConfigError("no target: give the writer the option `topic`, or the DataFrame a column `topic`")
        self._targets: dict[str, Target] | None = None
        self._keeps_state = False

    def __getstate__(self) -> dict[str, Any]:
        """Describe the targets when the writer is pickled: that is on the driver, before the tasks start."""
        if self._targets is None:
            self._targets = self._finder.of_options()
            # By now Spark has planned the micro-batch, and written down where a query keeps its state.
            checkpoint = None if self.writes_once else self.options.checkpoint
            self._keeps_state = checkpoint is not None and checkpoint_keeps_state(checkpoint)
        return self.__dict__

    @property
    def _finder(self) -> TargetFinder:
        return self.options.sink.finder(self.options.settings, self.options.name)

    def write(self, iterator: Iterator[Any]) -> FrozenRows:
        """Freeze the rows of one task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, run = (context.getLocalProperty(name) or "" for name in (QUERY_ID, RUN_ID))
        batch = int(context.getLocalProperty(BATCH_ID) or _JOB_BATCH)
        where = context.partitionId()
        encoder = Encoder(self._encoding(start=crc32((query or self.options.name).encode()) + batch), where)
        rows = (columns.normalised_rows(each, self._columns) for each in self._as_arrow(iterator))
        limit = share_of(self.options.inline_bytes, where)
        batches = carried(encoder.encode(rows), limit, lambda: self._stage(encoder.targets))
        ids = {topic: encoder.targets[topic].topic_id for topic in {each.where.topic for each in batches}}
        digest = encoder.digest
        summed = None if digest is None else (digest.count, digest.sum)
        return FrozenRows(query, run, batch, where, batches, ids, summed)

    def _stage(self, targets: Mapping[str, Target]) -> StageWriter:
        options = self.options
        return StageWriter.open(
            options.settings,
            options.name,
            targets.values(),
            retention=options.stage_retention,
            patience=options.sink.patience,
        )

    def _encoding(self, start: int) -> Encoding:
        sink, named = self.options.sink, self.options.partitioner
        return Encoding.of(
            sink,
            self._finder,
            self._targets or {},
            choose=None if named is None else imported("partitioner", named),
            start=start,
            digest=self._keeps_state,
        )

    def _as_arrow(self, iterator: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        if ARROW:
            yield from iterator
            return
        import pyarrow as pa

        # Not by PySpark's own function for this, whose arguments differ between its versions.
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        kinds = {
            "binary": pa.binary(),
            "string": pa.string(),
            "int": pa.int32(),
            "timestamp": pa.timestamp("us", "UTC"),
        }
        found = ((name, self._schema[name].dataType.simpleString()) for name in self._columns.values())
        schema = pa.schema([(name, kinds.get(kind, pa.list_(header))) for name, kind in found])
        time = self._columns.get("timestamp")
        rows: list[dict[str, Any]] = []
        for row in iterator:
            cells = row.asDict(recursive=True)
            if time is not None and cells[time] is not None:
                cells[time] = cells[time].astimezone()  # local, without a zone: Arrow would take it for UTC
            rows.append(cells)
            if len(rows) == _ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def _publish(self, messages: Sequence[FrozenRows | None], query: str, batch: int, origin: Origin) -> BatchOutcome:
        options, sink = self.options, self.options.sink
        told = imported("onReport", options.on_report) if options.on_report is not None else None
        on_step = imported("onStep", options.on_step) if options.on_step is not None else None
        tell_step = None if on_step is None else lambda step: on_step(step, batch)
        runner = sink.runner(options.settings, options.name, tell_step, run=origin.run)
        try:
            content = MessagesContent(runner, messages, accept_recomputed=sink.accept_recomputed)
            outcome = runner.carry_out(content, query, batch, origin)
            content.clear_stage(for_good=self.writes_once)
        finally:
            runner.close()
        report_batch(options.name, query, outcome, content.manifest, runner.took, told)
        return outcome


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of a stream."""

    def commit(self, messages: Sequence[FrozenRows | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Write the micro-batch, unless it is in the log already."""
        query, run = _belonging(messages, batchId)
        offsets = checkpoint_hash(self.options.checkpoint, batchId) if self.options.checkpoint else ""
        outcome = self._publish(messages, query, batchId, Origin(run, offsets, self.options.sink.targets))
        if not outcome.compared:
            logger.warning(
                "sink %s: batch %s was skipped by its number alone, because its source offsets are not known here, or "
                "were not when it was written. If the checkpoint was restored from a backup, rows may be missing: give "
                'the checkpoint\'s place by option("checkpointLocation", …), or use '
                "foreachBatch(fencepost.spark.Sink(…))",
                self.options.name,
                batchId,
            )

    def abort(self, messages: Sequence[FrozenRows | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: a task changes nothing, and a commit that failed has ended its transaction."""


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of a batch DataFrame."""

    writes_once = True

    def commit(self, messages: Sequence[FrozenRows | None]) -> None:
        """Write all rows, unless a job of this name was written before."""
        _complete(messages)
        job = self.options.name.removeprefix("job.")
        query = f"job {job} to {self.options.sink.topic or 'topics of the rows'}"
        if self._publish(messages, query, _JOB_BATCH, UNKNOWN).skipped:
            if self.options.if_written == "fail":
                raise FencepostError(f"{ALREADY} {job!r}: its name was written before, so these rows are not")
            logger.warning(
                "job %s was written before, so these rows are not. Give other rows a job name of their own, inside "
                "foreachBatch one for each batch id; `fencepost sink reset %s` frees the name",
                job,
                self.options.name,
            )

    def abort(self, messages: Sequence[FrozenRows | None]) -> None:
        """Do nothing: a task changes nothing."""


def _complete(messages: Sequence[FrozenRows | None]) -> list[FrozenRows]:
    """Return the messages. Raise if one is missing: its rows would be lost."""
    there = [message for message in messages if message is not None]
    if not there or len(there) < len(messages):
        raise FencepostError(
            f"Spark committed {len(messages)} tasks, and {len(messages) - len(there)} of them returned nothing: the "
            "micro-batch is not written"
        )
    return there


def _belonging(messages: Sequence[FrozenRows | None], batch: int) -> tuple[str, str]:
    """Return the query and the run that the messages belong to."""
    there = _complete(messages)
    found = {(message.query, message.run) for message in there}
    if len(found) > 1 or any(message.batch != batch for message in there):
        raise FencepostError(f"the tasks of micro-batch {batch} belong to several queries or batches: {sorted(found)}")
    ((query, run),) = found
    if not query or not _RUN.fullmatch(run):
        raise ConfigError(
            "this Spark does not tell its tasks which query they run for, so micro-batches cannot be told apart: use"
            " foreachBatch(fencepost.spark.Sink(…))"
        )
    return query, run


class MessagesContent(Content):
    """A micro-batch whose content came with the tasks' commit messages."""

    advice = Advice(
        when_slow="make micro-batches smaller (maxOffsetsPerTrigger), or the option transactionTimeout longer",
        when_untimely="write records with the time of writing (no keepTimestamps)",
    )

    def __init__(
        self, runner: Runner, messages: Sequence[FrozenRows | None], *, accept_recomputed: bool = False
    ) -> None:
        self.manifest = Manifest({})
        self._runner = runner
        self._messages = _complete(messages)
        self._accept_recomputed = accept_recomputed
        digests = [message.digest for message in self._messages if message.digest is not None]
        self._digest = digest_text(digests) if len(digests) == len(self._messages) else ""
        """Empty if it is not known whether the query keeps state."""

    def freeze(self, position: str) -> FrozenContent:
        ids = {topic: found for message in self._messages for topic, found in message.topic_ids.items()}
        messages = sorted(self._messages, key=lambda message: message.map_partition)
        self.manifest = manifest_of_frozen(batch for message in messages for batch in message.batches)
        return FrozenContent(topics=topics_text(self._runner.cluster_id, ids), digest=self._digest)

    def other_rows(self, last: Progress) -> str:
        if self._accept_recomputed:
            return ""
        if self._digest:
            return other_rows_text(self._runner.name, last, self._digest, option="acceptRecomputed=true")
        logger.warning(
            "sink %s: batch %s is in the log and skipped, and it is not known whether it was recomputed with the same "
            "rows, which a query that keeps state needs: give the checkpoint's place by "
            'option("checkpointLocation", …), where the driver\'s Python can read it',
            self._runner.name,
            last.batch,
        )
        return ""

    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        stage = STAGE_TOPIC_PREFIX + self._runner.name
        try:
            by_threads(self._runner.routes, transaction, self.manifest.batches, stage=stage)
        except (DataLost, Poisoned, CorruptBatch, UnsupportedFormat) as error:
            raise ContentLost(
                f"sink {self._runner.name!r}: rows that tasks have frozen are gone, so the micro-batch is not written: "
                f"{error}. Was the topic {stage} deleted, or is its retention shorter than a micro-batch takes "
                "(stageRetention)? Start the query again: it writes this micro-batch anew"
            ) from error

    def clear_stage(self, *, for_good: bool) -> None:
        """Delete what the tasks have staged, now that the micro-batch is in the log; `for_good`: the whole topic."""
        staged = [batch.content for message in self._messages for batch in message.batches]
        ends = ends_of(place for place in staged if isinstance(place, Staged))
        if ends and for_good:
            delete_stage(self._runner.admin, self._runner.name)
        elif ends:
            clear_stage(self._runner.admin, self._runner.name, ends)

    def records(self) -> Mapping[TopicPartition, int]:
        return self.manifest.records
