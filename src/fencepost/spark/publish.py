"""Publishing a manifest: by the driver if it has the batches, else by tasks, one per target partition.

Exceptions of tasks reach the driver as text. So a task raises only what another attempt may cure, for Spark to run it
again; every other error is its answer, which `raise_failed` raises on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.transactions.shared_writer import (
    LeaderChannels,
    PartitionWriter,
    SharedTransaction,
    write_first_batches,
)
from fencepost.core.micro_batch.protocol import Poisoned
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel import Buffer
from fencepost.spark import tuning
from fencepost.spark.freeze import MANIFEST_COLUMNS, FrozenBatch, Manifest, ManifestEntry, compare
from fencepost.spark.spool import SpoolPlace, SpoolReader
from fencepost.spark.stage import contents
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_THREADS: Final = 4
_ONE_REQUEST: Final = 1 << 20
"""Bytes of batches that go in one request."""
RESULT: Final = (
    "topic string, partition int, last_sequence bigint, repeated int, poisoned boolean, code int, error string"
)
_NOWHERE: Final = TopicPartition("", -1)
_ORDER: Final = ("topic", "partition", "map_partition", "number")

_Batches: TypeAlias = "Mapping[TopicPartition, Sequence[FrozenBatch]]"
"""Target partitions with their batches, in order."""
_Entries: TypeAlias = "Mapping[TopicPartition, Sequence[ManifestEntry]]"


class PublishedPartition(NamedTuple):
    """A task's report of a target partition, or why it failed: the columns of RESULT."""

    topic: str
    partition: int
    last_sequence: int = -1
    repeated: int = 0
    poisoned: bool = False
    code: int = 0
    error: str | None = None


def failed(where: TopicPartition | None, error: FencepostError) -> PublishedPartition:
    """Return the answer of a task that failed. Raise the error if another attempt may cure it. The driver explains a
    topic that was deleted; another attempt would only wait again."""
    if isinstance(error, Poisoned):
        return PublishedPartition(*(where or _NOWHERE), poisoned=True, error=str(error))
    if error.retriable and error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise error
    return PublishedPartition(*(where or _NOWHERE), code=int(error.code), error=error.reason)


def raise_failed(found: Sequence[PublishedPartition]) -> None:
    """Raise the error of a task."""
    for row in found:
        if row.error is not None:
            raise Poisoned(row.error) if row.poisoned else ServerError(ErrorCode.of(row.code), row.error)


def by_driver(links: LeaderChannels, transaction: SharedTransaction, batches: _Batches, *, stage: str = "") -> None:
    """Publish one target partition after the other, or all at once if they are small. `stage`: the topic of staged
    batches."""
    every = [batch for found in batches.values() for batch in found]
    read = contents(links.routes, stage, every)  # of all targets, over the same connections
    if 1 < len(batches) == len(every) and sum(batch.entry.size for batch in every) <= _ONE_REQUEST:
        _publish_at_once(links, transaction, batches, read)
        return
    for where, found in batches.items():
        writer = PartitionWriter(links, transaction, where, fresh=True)
        for _, entry, _ in found:
            content = next(read)
            compare(where, entry, entry, content)
            writer.write(bytearray(content))
        writer.finish()


def _publish_at_once(
    links: LeaderChannels, transaction: SharedTransaction, batches: _Batches, read: Iterator[Buffer]
) -> None:
    """Publish one batch per target partition."""
    payloads: dict[TopicPartition, bytearray] = {}
    for where, ((_, entry, _),) in batches.items():
        content = next(read)
        compare(where, entry, entry, content)
        payloads[where] = bytearray(content)
    confirmed = write_first_batches(links, transaction, payloads)
    for where in payloads.keys() - confirmed.keys():
        # Not asked what is there: a batch that is there is acknowledged again. And `write` waits for a server that is
        # away; a question would fail.
        writer = PartitionWriter(links, transaction, where, fresh=True)
        writer.write(payloads[where])
        writer.finish()


def by_threads(routes: Routes, transaction: SharedTransaction, batches: _Batches, *, stage: str) -> None:
    """Publish as `by_driver` does, a few target partitions at a time."""
    targets = list(batches.items())
    threads = min(_THREADS, len(targets))

    def publish(some: list[tuple[TopicPartition, Sequence[FrozenBatch]]]) -> None:
        with LeaderChannels(routes) as links:
            by_driver(links, transaction, dict(some), stage=stage)

    with ThreadPoolExecutor(max(1, threads), "fencepost-publish") as pool:
        for done in [pool.submit(publish, targets[first::threads]) for first in range(threads)]:
            done.result()


def by_tasks(frozen: DataFrame, settings: ClientSettings, transaction: SharedTransaction, manifest: Manifest) -> None:
    """Publish each target partition in one task; raise unless every batch was published."""
    batches = frozen.where("partition >= 0") if manifest.digest else frozen
    arranged = _arranged(batches.select(*MANIFEST_COLUMNS, "payload"), manifest)
    with tuning.settings(frozen.sparkSession, tuning.WHILE_PUBLISHING):
        found = arranged.mapInArrow(publish_rows(settings, transaction, manifest.entries), RESULT).collect()
    _check(found, manifest)


def from_files(
    spark: SparkSession, settings: ClientSettings, transaction: SharedTransaction, manifest: Manifest
) -> None:
    """Publish the batches of files of this machine, each target partition in one task; raise unless every batch was
    published."""
    tasks = max(1, min(len(manifest.batches), spark.sparkContext.defaultParallelism))
    targets = list(manifest.batches.items())
    shares = [dict(targets[first::tasks]) for first in range(tasks)]
    publish = publish_files(settings, transaction)
    _check(spark.sparkContext.parallelize(shares, tasks).flatMap(publish).collect(), manifest)


def _check(found: Sequence[PublishedPartition], manifest: Manifest) -> None:
    """Raise unless every batch was published."""
    raise_failed(found)
    last = {TopicPartition(row.topic, row.partition): row.last_sequence for row in found}
    for where, records in manifest.records.items():
        if last.get(where) != records - 1:
            raise Poisoned(f"{where}: {records} records to publish, but the last sequence is {last.get(where)}")


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
    settings: ClientSettings, transaction: SharedTransaction, expected: _Entries
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over the sorted batches."""

    def publish(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Routes(settings) as routes, LeaderChannels(routes) as links:
            for answer in _publish(links, transaction, _stored(rows), expected):
                yield _as_row(answer)

    return publish


def publish_files(
    settings: ClientSettings, transaction: SharedTransaction
) -> Callable[[_Batches], list[PublishedPartition]]:
    """Return the function that Spark maps over the shares of the manifest; as `publish_rows`."""

    def publish(share: _Batches) -> list[PublishedPartition]:
        expected = {where: [batch.entry for batch in batches] for where, batches in share.items()}
        with Routes(settings) as routes, LeaderChannels(routes) as links, SpoolReader() as files:
            read = (
                batch._replace(content=files.read(batch.content, batch.entry.size))
                for batches in share.values()
                for batch in batches
                if isinstance(batch.content, SpoolPlace)
            )
            return list(_publish(links, transaction, read, expected))

    return publish


def _stored(rows: Iterator[pa.RecordBatch]) -> Iterator[FrozenBatch]:
    """Yield the batches that Spark's storage has kept."""
    for batch in rows:
        cells = zip(*(batch.column(name).to_pylist() for name in MANIFEST_COLUMNS), strict=True)
        for cell, payload in zip(cells, batch.column("payload"), strict=True):
            topic, partition, map_partition, number, records, size, checksum = cell
            entry = ManifestEntry(map_partition, number, records, size, checksum & 0xFFFFFFFF)
            yield FrozenBatch(TopicPartition(topic, partition), entry, memoryview(payload.as_buffer()))


def _publish(
    links: LeaderChannels, transaction: SharedTransaction, batches: Iterator[FrozenBatch], expected: _Entries
) -> Iterator[PublishedPartition]:
    where: TopicPartition | None = None
    try:
        for target, found in groupby(batches, lambda batch: batch.where):
            where, wanted = target, expected.get(target, ())
            writer = PartitionWriter(links, transaction, target)
            for at, batch in enumerate(found):
                payload = batch.payload
                compare(target, wanted[at] if at < len(wanted) else None, batch.entry, memoryview(payload))
                writer.write(payload if isinstance(payload, bytearray) else bytearray(payload))
            yield PublishedPartition(target.topic, target.partition, writer.finish(), writer.repeated)
    except FencepostError as error:
        yield failed(where, error)


def _as_row(answer: PublishedPartition) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = (pa.string(), pa.int32(), pa.int64(), pa.int32(), pa.bool_(), pa.int32(), pa.string())
    cells = [pa.array([cell], kind) for cell, kind in zip(answer, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(cells, names=list(answer._fields))
