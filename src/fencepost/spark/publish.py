"""Publishing a manifest: by the driver if the micro-batch is small, else by tasks, one per target partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.micro_batch import Poisoned
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.spark import tuning
from fencepost.spark.freeze import Manifest, ManifestEntry, compare
from fencepost.spark.stage import contents
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_THREADS: Final = 4
RESULT: Final = (
    "topic string, partition int, last_sequence bigint, repeated int, poisoned boolean, code int, error string"
)
_COLUMNS: Final = ("topic", "partition", "map_partition", "number", "records", "size", "checksum")
_ORDER: Final = ("topic", "partition", "map_partition", "number")


def by_driver(
    links: LeaderChannels, transaction: SharedTransaction, manifest: Manifest, *, stage: str | None = None
) -> None:
    """Publish one target partition after the other. `stage`: the topic of staged batches."""
    assert manifest.payloads is not None
    entries = [entry for where in manifest.payloads for entry in manifest.batches[where]]
    payloads = [payload for payloads in manifest.payloads.values() for payload in payloads]
    read = contents(links.routes, stage, entries, payloads)  # of all targets, over the same connections
    for where in manifest.payloads:
        writer = PartitionWriter(links, transaction, where, fresh=True)
        for entry in manifest.batches[where]:
            content = next(read)
            compare(where, entry, entry, content)
            writer.write(bytearray(content))
        writer.finish()


def by_threads(routes: Routes, transaction: SharedTransaction, manifest: Manifest, *, stage: str | None = None) -> None:
    """Publish as `by_driver` does, a few target partitions at a time."""
    assert manifest.payloads is not None
    targets = list(manifest.batches)
    threads = min(_THREADS, len(targets))

    def publish(some: list[TopicPartition]) -> None:
        links = LeaderChannels(routes)
        try:
            by_driver(links, transaction, manifest.only(some), stage=stage)
        finally:
            links.close()

    with ThreadPoolExecutor(max(1, threads), "fencepost-publish") as pool:
        for done in [pool.submit(publish, targets[first::threads]) for first in range(threads)]:
            done.result()


def by_tasks(frozen: DataFrame, settings: ClientSettings, transaction: SharedTransaction, manifest: Manifest) -> None:
    """Publish each target partition in one task; raise unless every batch was published."""
    arranged = _arranged(frozen.select(*_COLUMNS, "payload"), manifest)
    with tuning.settings(frozen.sparkSession, tuning.WHILE_PUBLISHING):
        found = arranged.mapInArrow(publish_rows(settings, transaction, manifest.batches), RESULT).collect()
    for row in found:
        if row.poisoned:
            raise Poisoned(row.error)
        if row.error is not None:
            raise ServerError(ErrorCode.of(row.code), row.error)
    last = {TopicPartition(row.topic, row.partition): row.last_sequence for row in found}
    for where in manifest.batches:
        if last.get(where) != manifest.records_of(where) - 1:
            raise Poisoned(
                f"{where}: {manifest.records_of(where)} records to publish, but the last sequence is {last.get(where)}"
            )


def _arranged(frozen: DataFrame, manifest: Manifest) -> DataFrame:
    """Bring each target partition's batches into one task, in order. No shuffle is needed if each target partition gets
    its rows from a single map partition, for example when source and target are partitioned by the same keys."""
    sources = manifest.map_partitions_of
    if all(len(found) == 1 for found in sources.values()):
        one_each = len(set(sources.values())) == len(sources)
        return frozen if one_each else frozen.sortWithinPartitions(*_ORDER)
    tasks = max(1, min(len(sources), frozen.sparkSession.sparkContext.defaultParallelism))
    return _by_target(frozen, manifest, tasks).sortWithinPartitions(*_ORDER)


def _by_target(frozen: DataFrame, manifest: Manifest, tasks: int) -> DataFrame:
    """Assign each target partition to one task; evenly if Spark supports it (4.1)."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    if not hasattr(frozen, "repartitionById"):
        return frozen.repartition(tasks, "topic", "partition")
    topics = sorted({where.topic for where in manifest.batches})
    start: Any = F  # chained `when`s, not nested ones: there may be thousands
    for number, topic in enumerate(topics):
        start = start.when(F.col("topic") == topic, F.lit(number))
    return frozen.repartitionById(tasks, F.pmod(F.col("partition") + start.otherwise(0), F.lit(tasks)).cast("int"))


def publish_rows(
    settings: ClientSettings, transaction: SharedTransaction, expected: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over the sorted batches. It reports errors that the driver must handle as
    rows, because exceptions reach the driver as text. It raises all others, so that Spark runs the task again."""

    def publish(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Routes(settings) as routes:
            links = LeaderChannels(routes)
            try:
                yield from _publish(links, transaction, expected, _entries(rows))
            finally:
                links.close()

    return publish


def _entries(rows: Iterator[pa.RecordBatch]) -> Iterator[tuple[TopicPartition, ManifestEntry, Any]]:
    for batch in rows:
        cells = [batch.column(name).to_pylist() for name in _COLUMNS]
        payloads = batch.column("payload")
        for at, (topic, partition, map_partition, number, records, size, checksum) in enumerate(
            zip(*cells, strict=True)
        ):
            entry = ManifestEntry(map_partition, number, records, size, checksum & 0xFFFFFFFF)
            yield TopicPartition(topic, partition), entry, payloads[at].as_buffer()


def _publish(
    links: LeaderChannels,
    transaction: SharedTransaction,
    expected: Any,
    entries: Iterator[tuple[TopicPartition, ManifestEntry, Any]],
) -> Iterator[pa.RecordBatch]:
    where: TopicPartition | None = None
    writer: PartitionWriter | None = None
    at = 0
    try:
        for target, entry, payload in entries:
            if target != where:
                if writer is not None and where is not None:
                    yield _result(where, writer)
                where, at = target, 0
                writer = PartitionWriter(links, transaction, target)
            assert writer is not None
            wanted = expected.get(target, ())
            compare(target, wanted[at] if at < len(wanted) else None, entry, memoryview(payload))
            writer.write(bytearray(payload))
            at += 1
        if writer is not None and where is not None:
            yield _result(where, writer)
    except Poisoned as error:
        yield _answer(where, poisoned=True, error=str(error))
    except FencepostError as error:
        # The driver explains a topic that was deleted; another attempt would only wait again.
        if error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        yield _answer(where, code=error.code, error=error.reason)


def _result(where: TopicPartition, writer: PartitionWriter) -> pa.RecordBatch:
    last = writer.finish()
    return _answer(where, last_sequence=last, repeated=writer.repeated)


def _answer(
    where: TopicPartition | None,
    *,
    last_sequence: int = -1,
    repeated: int = 0,
    poisoned: bool = False,
    code: int = 0,
    error: str | None = None,
) -> pa.RecordBatch:
    import pyarrow as pa

    topic, partition = where or ("", -1)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([topic], pa.string()),
            pa.array([partition], pa.int32()),
            pa.array([last_sequence], pa.int64()),
            pa.array([repeated], pa.int32()),
            pa.array([poisoned], pa.bool_()),
            pa.array([int(code)], pa.int32()),
            pa.array([error], pa.string()),
        ],
        names=["topic", "partition", "last_sequence", "repeated", "poisoned", "code", "error"],
    )
