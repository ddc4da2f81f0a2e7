"""Freezing: the rows of a micro-batch are encoded into record batches once, before any of them is published.

Spark retries and re-runs tasks silently, and recomputed rows may differ. So one pass partitions and encodes the rows,
Spark's storage or files (`spool.py`) keep the encoded batches, and the driver collects the *manifest*: for every target
partition the ordered list of (map partition, number, records, size, checksum). Before a batch is published it is
compared with the manifest; a difference raises `Poisoned`.

Rows keep their order within a map partition, and the batches of a target partition are published in the order (map
partition, number). So records of one key stay in the order of the DataFrame.

This runs on executors, on Arrow columns; only the kernel looks at single records. A row that can never be written (too
large for its topic, no such topic or partition, no key on a compacted topic) fails the batch, or goes to the
`dead_letter` topic in the same transaction, with the reason in its headers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fencepost.client.micro_batch.targets import Target, TargetFinder
from fencepost.client.micro_batch.topics import Staged
from fencepost.core.micro_batch.protocol import Poisoned
from fencepost.errors import FencepostError, RecordTooLarge
from fencepost.kernel import CODECS, BatchBuilder, Buffer, check_batch, group_rows, partition_rows, read_header
from fencepost.kernel.arrow import column_source, milliseconds
from fencepost.spark.columns import LONG
from fencepost.spark.digest import RowDigest, digest_text
from fencepost.spark.spool import SpoolPlace, SpoolWriter
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.spark.options import SinkOptions

MANIFEST_SCHEMA: Final = (
    "topic string, partition int, map_partition int, number int, records int, size int, checksum bigint"
)
MANIFEST_COLUMNS: Final = ("topic", "partition", "map_partition", "number", "records", "size", "checksum")
SCHEMA: Final = f"{MANIFEST_SCHEMA}, payload binary"
"""`payload` is the encoded batch. It is not collected with the manifest: Spark's storage does not read columns that a
query does not select."""
SPOOLED_SCHEMA: Final = f"{MANIFEST_SCHEMA}, file string, at bigint"
"""The same where the batches are in files (`spool.py`)."""

TOO_LONG: Final = -2
"""The partition in a manifest row that only says: a row came without its content (`columns.short_only`)."""
DIGEST: Final = -3
"""The partition in a manifest row that only has the digest of a task's rows, and their number."""
_TOGETHER: Final = 256 << 10
"""Bytes of encoded batches that are handed to Spark in one Arrow batch, unless a single one is larger."""

REASON_HEADER: Final = "fencepost.reason"
TOPIC_HEADER: Final = "fencepost.topic"
TIMESTAMP_HEADER: Final = "fencepost.timestamp"
"""The row's own time, in milliseconds since 1970; the dead letter itself has the time of writing."""
NO_TIME: Final = -1
"""Kafka's timestamp for "none"."""

ChoosePartitions: TypeAlias = "Callable[[pa.RecordBatch, int], pa.Array]"
"""Maps rows and the number of partitions to a partition (int32) per row; null leaves the choice to the sink."""


FindTargets: TypeAlias = "Callable[[Iterable[str]], Mapping[str, Target]]"


class Unwritable(FencepostError):
    """A row that can never be written, in a sink without a `dead_letter` topic."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The settings for encoding rows; pickled to the executors."""

    targets: Mapping[str, Target]
    topic: str | None
    """The topic of rows that name none."""
    codec: int
    level: int | None
    batch_bytes: int
    dead_letter: str | None
    choose: ChoosePartitions | None
    map_partitions: int | None = None
    """The number of freezing tasks, if it is known beforehand."""
    find: FindTargets | None = None
    """Describes topics that rows name. None: only `targets` can be written."""
    slack_ms: int = 0
    """Margin between a record's time and the target's limits, because the server's clock may differ from ours."""
    start: int = 0
    """The first turn for rows without a key: one more with every micro-batch, constant when a batch is frozen again."""
    digest: bool = False
    """The query keeps state, so the progress record needs a digest of the rows."""

    @classmethod
    def of(cls, options: SinkOptions, finder: TargetFinder, targets: Mapping[str, Target], **rest: Any) -> Encoding:
        """Return the settings for a sink with these options. `rest`: the other fields."""
        return cls(
            targets=targets,
            find=None if options.topic or options.topics else finder.of_rows,
            topic=options.topic,
            codec=CODECS[options.compression],
            level=options.compression_level,
            batch_bytes=options.batch_bytes,
            dead_letter=options.dead_letter,
            **rest,
        )

    def keyless(self, map_partition: int, turn: int, partitions: int) -> int:
        """Return the partition for the keyless rows of an Arrow batch: one partition per Arrow batch, in turn. Tasks
        and micro-batches start at different partitions, because most have a single Arrow batch. If the number of tasks
        divides the number of partitions, each task keeps to its own partitions, which avoids a shuffle."""
        tasks = self.map_partitions
        step = tasks if tasks and partitions % tasks == 0 else 1
        return (self.start + map_partition + turn * step) % partitions


class ManifestEntry(NamedTuple):
    """The identification of a frozen batch."""

    map_partition: int
    number: int
    records: int
    size: int
    checksum: int


class FrozenBatch(NamedTuple):
    """One encoded batch, not yet stamped."""

    where: TopicPartition
    entry: ManifestEntry
    content: Buffer | Staged | SpoolPlace | None
    """The batch itself, or its place: in the stage topic or in a file. None: Spark's storage has it."""

    @property
    def payload(self) -> Buffer:
        """The batch itself, where it is at hand."""
        assert not isinstance(self.content, Staged | SpoolPlace | None)
        return self.content


@dataclass(frozen=True)
class Manifest:
    """The batches to publish: target partition → its batches in order."""

    batches: Mapping[TopicPartition, tuple[FrozenBatch, ...]]
    lacks_content: bool = False
    """Rows were longer than expected, and their content is missing here: freeze again."""
    digest: str = ""
    """The digest of the rows, for the progress record."""

    @property
    def entries(self) -> dict[TopicPartition, tuple[ManifestEntry, ...]]:
        return {where: tuple(batch.entry for batch in batches) for where, batches in self.batches.items()}

    @property
    def records(self) -> dict[TopicPartition, int]:
        """The number of records of each target partition."""
        return {where: sum(batch.entry.records for batch in batches) for where, batches in self.batches.items()}

    @property
    def size(self) -> int:
        return sum(batch.entry.size for batches in self.batches.values() for batch in batches)

    @property
    def published_by(self) -> str:
        """`driver` if the contents are here or in the stage topic, `tasks`, or `nobody` without batches."""
        for batches in self.batches.values():
            return "tasks" if batches[0].content is None or isinstance(batches[0].content, SpoolPlace) else "driver"
        return "nobody"

    @property
    def map_partitions_of(self) -> Mapping[TopicPartition, frozenset[int]]:
        """Target partition → the map partitions with batches for it."""
        return {
            where: frozenset(batch.entry.map_partition for batch in batches) for where, batches in self.batches.items()
        }


def compare(where: TopicPartition, expected: ManifestEntry | None, found: ManifestEntry, payload: Buffer) -> None:
    """Raise Poisoned unless the batch is the one in the manifest."""
    if expected != found:
        raise Poisoned(f"{where}: found batch {found}, but the manifest has {expected}")
    header = check_batch(payload)
    if header.crc != found.checksum or header.size != found.size or header.count != found.records:
        raise Poisoned(f"{where}: the stored batch {found} differs from the frozen one")


class Encoder:
    """The encoder of one map partition's rows."""

    def __init__(self, encoding: Encoding, map_partition: int) -> None:
        self.encoding = encoding
        self.map_partition = map_partition
        self.targets = dict(encoding.targets)
        self.digest = RowDigest() if encoding.digest else None
        self.lacks_content = False
        """A row came without its content."""
        self._asked: set[str] = set()
        self._open: dict[TopicPartition, BatchBuilder] = {}
        self._number = 0
        self._turns: Counter[str] = Counter()
        """Topic → the number of Arrow batches with rows for it."""

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[FrozenBatch]:
        """Yield the rows as record batches; nothing more once a row lacks its content."""
        for rows in batches:
            if LONG in rows.schema.names:
                self.lacks_content = self.lacks_content or rows.column(LONG).true_count > 0
                rows = rows.select([name for name in rows.schema.names if name != LONG])
            if not self.lacks_content:  # else the rest is read for Spark's sake, which would end the worker
                if self.digest is not None:
                    self.digest.add(rows)
                yield from self._add(rows)
        if not self.lacks_content:
            for where in list(self._open):
                yield from self._close(where)

    def _add(self, rows: pa.RecordBatch) -> Iterator[FrozenBatch]:
        now_ms = time.time_ns() // 1_000_000
        for topic, part in self._by_topic(rows):
            target = self.targets.get(topic) if topic is not None else None
            if target is None:
                why = "neither the row nor the sink names a topic" if topic is None else f"no topic {topic!r}"
                if topic is not None and self.encoding.dead_letter is None:
                    why += f"; `fencepost topic create {topic}` makes it, or create=PARTITIONS lets the sink do it"
                yield from self._unwritable(part, topic, why, now_ms)
            else:
                yield from self._add_to(target, part, now_ms)

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
        import pyarrow.compute as pc

        if "topic" not in rows.schema.names:
            yield self.encoding.topic, rows
            return
        topics = rows.column("topic")
        if self.encoding.find is not None:
            unknown = set(topics.unique().to_pylist()) - self.targets.keys() - self._asked - {None}
            self._asked |= unknown
            self.targets |= self.encoding.find(unknown) if unknown else {}
        for topic in topics.unique():
            name = topic.as_py()
            mask = pc.is_null(topics) if name is None else pc.equal(topics, topic)
            yield name if name is not None else self.encoding.topic, rows.filter(mask)

    def _add_to(self, target: Target, rows: pa.RecordBatch, now_ms: int) -> Iterator[FrozenBatch]:
        import numpy as np
        import pyarrow.compute as pc

        if target.compacted:
            if "key" not in rows.schema.names:
                yield from self._unwritable(rows, target.topic, "no key, and the topic is compacted", now_ms)
                return
            without_key = rows.column("key").is_null()
            if without_key.true_count:
                bad = rows.filter(without_key)
                yield from self._unwritable(bad, target.topic, "no key, and the topic is compacted", now_ms)
                rows = rows.filter(rows.column("key").is_valid())
        if (nameless := _with_nameless_headers(rows)) is not None:
            yield from self._unwritable(rows.filter(nameless), target.topic, "a header without a name", now_ms)
            rows = rows.filter(pc.invert(nameless))
        for untimely, why in self._untimely(rows, target, now_ms):
            yield from self._unwritable(rows.filter(untimely), target.topic, why, now_ms)
            rows = rows.filter(pc.invert(untimely))
        source = column_source(rows)
        keyless = self._keyless(target)
        self._turns[target.topic] += 1
        chosen = np.frombuffer(memoryview(partition_rows(source, target.partitions, keyless=keyless)), dtype=np.int32)
        named = self._named(rows, target)
        if named is not None:
            chosen = np.where(named >= 0, named, chosen).astype(np.int32)
            outside = (named >= target.partitions) | (named < -1)
            if outside.any():
                import pyarrow as pa

                mask = pa.array(outside)
                why = f"no such partition: {target.topic} has {target.partitions}"
                yield from self._unwritable(rows.filter(mask), target.topic, why, now_ms)
                rows = rows.filter(pa.array(~outside))
                chosen = chosen[~outside]
                source = column_source(rows)
        if not len(chosen):
            return
        order, starts = group_rows(chosen.tobytes(), target.partitions)
        limit = min(self.encoding.batch_bytes, target.max_bytes)
        for partition in range(target.partitions):
            at, stop = starts[partition], starts[partition + 1]
            if at == stop:
                continue
            where = TopicPartition(target.topic, partition)
            builder = self._open.get(where)
            if builder is None:
                builder = self._open[where] = BatchBuilder()
            while True:
                at = builder.append_columns(source, at, stop, timestamp=now_ms, rows=order, limit=limit)
                if at == stop and builder.size <= limit:
                    break
                yield from self._close(where, rows, order, at)
                if at == stop:
                    break
                builder = self._open[where] = BatchBuilder()

    def _untimely(self, rows: pa.RecordBatch, target: Target, now_ms: int) -> Iterator[tuple[pa.Array, str]]:
        """Yield masks of the rows whose time the target would reject or misread, with the reason. Each mask is relative
        to the rows that the masks before it left."""
        if "timestamp" not in rows.schema.names or target.times is None:
            return
        import pyarrow.compute as pc

        times = milliseconds(rows.column("timestamp")).fill_null(now_ms)
        before, after = target.times
        first = max(now_ms - before + self.encoding.slack_ms, -(2**63))
        last = min(now_ms + after - self.encoding.slack_ms, 2**63 - 1)
        reasons = (
            (pc.equal(times, NO_TIME), "its time is -1 ms, which means `no timestamp` in Kafka"),
            (
                pc.less(times, first),
                f"its time is more than {before} ms behind the clock (message.timestamp.before.max.ms)",
            ),
            (
                pc.greater(times, last),
                f"its time is more than {after} ms ahead of the clock (message.timestamp.after.max.ms)",
            ),
        )
        kept = None
        for untimely, why in reasons:
            mask = untimely if kept is None else untimely.filter(kept)
            if mask.true_count:
                yield mask, why
                kept = pc.invert(untimely) if kept is None else pc.and_(kept, pc.invert(untimely))

    def _keyless(self, target: Target) -> int:
        return self.encoding.keyless(self.map_partition, self._turns[target.topic], target.partitions)

    def _named(self, rows: pa.RecordBatch, target: Target) -> Any:
        """Return each row's partition, from its column or from the user's function, −1 for neither; None if there are
        no such columns and no function."""
        import numpy as np
        import pyarrow as pa

        named = _numbers(rows.column("partition")) if "partition" in rows.schema.names else None
        if self.encoding.choose is None:
            return named
        if "key" not in rows.schema.names:  # the user's function expects one
            rows = rows.append_column("key", pa.nulls(rows.num_rows, pa.binary()))
        chosen = _numbers(self.encoding.choose(rows, target.partitions))
        return chosen if named is None else np.where(named != -1, named, chosen)

    def _close(
        self, where: TopicPartition, rows: pa.RecordBatch | None = None, order: Any = None, at: int = 0
    ) -> Iterator[FrozenBatch]:
        builder = self._open.pop(where)
        payload = builder.build(self.encoding.codec, self.encoding.level)
        limit = self.targets[where.topic].max_bytes
        if len(payload) > limit:
            payload = builder.build(0)  # incompressible data grows when compressed, and may fit without
        if len(payload) > limit:
            # A builder accepts its first record at any size; so this batch has one record, the last one appended.
            why = f"a record of {builder.size} bytes is more than {where.topic} accepts ({limit} bytes)"
            if self.encoding.dead_letter is None or rows is None:
                raise RecordTooLarge(
                    f"{why}; raise the topic's max.message.bytes, or give the sink a dead_letter topic"
                )
            import numpy as np

            row = int(np.frombuffer(order, dtype=np.int32)[at - 1])
            yield from self._unwritable(rows.slice(row, 1), where.topic, why, time.time_ns() // 1_000_000)
            return
        yield self._frozen(where, builder.count, payload)

    def _frozen(self, where: TopicPartition, records: int, payload: bytearray) -> FrozenBatch:
        self._number += 1
        crc = read_header(payload).crc
        entry = ManifestEntry(self.map_partition, self._number, records, len(payload), crc)
        return FrozenBatch(where, entry, payload)

    def _unwritable(self, rows: pa.RecordBatch, topic: str | None, why: str, now_ms: int) -> Iterator[FrozenBatch]:
        dead_letter = self.encoding.dead_letter
        if dead_letter is None:
            raise Unwritable(
                f"{rows.num_rows} rows cannot be written: {why}. The first one: {_described(rows, topic)}. Set the "
                "sink's dead_letter topic to divert such rows"
            )
        target = self.targets[dead_letter]
        where = TopicPartition(dead_letter, self._keyless(target))
        times = _times(rows)
        for at in range(rows.num_rows):
            row = {name: rows.column(name)[at].as_py() for name in rows.schema.names if name != "timestamp"}
            given = [header for header in row.get("headers") or () if header is not None]
            headers = [(header["key"], header["value"]) for header in given if header["key"] is not None]
            if times[at] is not None:
                headers.append((TIMESTAMP_HEADER, str(times[at]).encode()))
            headers += [(REASON_HEADER, why.encode()), (TOPIC_HEADER, (topic or "").encode())]
            # A row that does not fit into the dead-letter topic either is truncated.
            room = min(target.max_bytes, self.encoding.batch_bytes) - 1024
            room -= _size_of(headers)
            if room < 0:
                headers, room = headers[-2:], max(0, min(target.max_bytes, self.encoding.batch_bytes) - 4096)
            key, value = row.get("key"), row.get("value")
            key = None if key is None else key[: room // 2]
            value = None if value is None else value[: room - len(key or b"")]
            builder = self._open.get(where)
            size = len(key or b"") + len(value or b"") + _size_of(headers) + 4096
            if builder is None or builder.size + size > target.max_bytes:
                if builder is not None:
                    yield from self._close(where)
                builder = self._open[where] = BatchBuilder()
            builder.append(key, value, now_ms, headers)


def _with_nameless_headers(rows: pa.RecordBatch) -> pa.Array | None:
    """Return a mask of the rows with a null header or a header without a name; None if there are no such rows."""
    import pyarrow.compute as pc

    if "headers" not in rows.schema.names:
        return None
    headers = rows.column("headers")
    bad = pc.is_null(pc.struct_field(headers.flatten(), "key"))
    if not bad.true_count:
        return None
    import pyarrow as pa

    where = pc.filter(pc.list_parent_indices(headers), bad)
    return pc.is_in(pa.array(range(rows.num_rows)), value_set=where)


def _described(rows: pa.RecordBatch, topic: str | None) -> str:
    """Describe the first row: topic, key and time, if it has them."""
    key = rows.column("key")[0].as_py() if "key" in rows.schema.names else None
    said = f"topic {topic}, " if topic else ""
    said += "no key" if key is None else f"key {key[:50]!r}"
    (time_ms, *_) = _times(rows)
    return said if time_ms is None else f"{said}, time {time_ms} ms since 1970"


def _times(rows: pa.RecordBatch) -> list[int | None]:
    """Return the rows' times in milliseconds since 1970. Spark's range of dates is larger than Python's."""
    if "timestamp" not in rows.schema.names:
        return [None] * rows.num_rows
    times: list[int | None] = milliseconds(rows.column("timestamp")).to_pylist()
    return times


def _size_of(headers: list[tuple[str, bytes | None]]) -> int:
    """Return an upper bound of the headers' encoded size."""
    return sum(len(name.encode()) + len(content or b"") + 16 for name, content in headers)


def _numbers(partitions: pa.Array) -> Any:
    """Convert to numpy, with −1 for null."""
    import pyarrow as pa

    return partitions.cast(pa.int32()).fill_null(pa.scalar(-1, pa.int32())).to_numpy(zero_copy_only=False)


def freeze_rows(
    encoding: Encoding, folder: str | None = None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over the rows' Arrow batches; its result has the columns of SCHEMA, or with a
    `folder` for the batches those of SPOOLED_SCHEMA."""

    def freeze(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        map_partition = context.partitionId() if context is not None else 0
        encoder = Encoder(encoding, map_partition)
        frozen = chain(encoder.encode(batches), _said_by(encoder))
        yield from _rows_of(frozen) if folder is None else _spooled(frozen, folder)

    return freeze


def _said_by(encoder: Encoder) -> Iterator[FrozenBatch]:
    """Yield the rows of the manifest that are not batches: when all rows are read."""
    if encoder.lacks_content:
        yield FrozenBatch(TopicPartition("", TOO_LONG), ManifestEntry(encoder.map_partition, 0, 0, 0, 0), b"")
    if encoder.digest is not None:
        entry = ManifestEntry(encoder.map_partition, 0, encoder.digest.count, 0, encoder.digest.signed)
        yield FrozenBatch(TopicPartition("", DIGEST), entry, b"")


def _rows_of(frozen: Iterator[FrozenBatch]) -> Iterator[pa.RecordBatch]:
    """Yield encoded batches as rows, small ones together. A large one is not copied."""
    held: list[FrozenBatch] = []
    size = 0
    for batch in frozen:
        if held and size + batch.entry.size > _TOGETHER:
            yield _as_rows(held, payload=_binary([each.payload for each in held]))
            held, size = [], 0
        held.append(batch)
        size += batch.entry.size
    if held:
        yield _as_rows(held, payload=_binary([each.payload for each in held]))


def _spooled(frozen: Iterator[FrozenBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """Write encoded batches to a file, and yield one Arrow batch that describes them all."""
    import pyarrow as pa

    kept: list[FrozenBatch] = []
    places: list[SpoolPlace] = []
    with SpoolWriter(folder) as file:
        for batch in frozen:
            places.append(file.put(batch.payload))
            kept.append(batch._replace(content=None))
    if kept:
        files = pa.array([place.file for place in places], pa.string())
        yield _as_rows(kept, file=files, at=pa.array([place.at for place in places], pa.int64()))


def _as_rows(frozen: list[FrozenBatch], **content: pa.Array) -> pa.RecordBatch:
    """Return the columns of the manifest, and the further ones."""
    import pyarrow as pa

    kinds = (pa.string(), *[pa.int32()] * 5, pa.int64())
    cells = zip(*((*batch.where, *batch.entry) for batch in frozen), strict=True)
    columns = [pa.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
    return pa.RecordBatch.from_arrays([*columns, *content.values()], names=[*MANIFEST_COLUMNS, *content])


def _binary(cells: list[Buffer]) -> pa.Array:
    """Build a binary array without converting to bytes as `pa.array` would; a single cell is not copied."""
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum([len(cell) for cell in cells], out=offsets[1:])
    content = cells[0] if len(cells) == 1 else b"".join(cells)
    return pa.Array.from_buffers(
        pa.binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(content)], null_count=0
    )


def manifest_of_frozen(frozen: Iterable[FrozenBatch]) -> Manifest:
    """Build the manifest of batches that the driver publishes, in their order."""
    batches: dict[TopicPartition, list[FrozenBatch]] = {}
    for batch in frozen:
        batches.setdefault(batch.where, []).append(batch)
    return Manifest({where: tuple(found) for where, found in batches.items()})


def manifest_of(rows: list[Any], *, digest: bool = False) -> Manifest:
    """Build the manifest from the collected rows (MANIFEST_COLUMNS). `digest`: tasks computed one."""
    digests = [(row.records, row.checksum) for row in rows if row.partition == DIGEST]
    batches: dict[TopicPartition, list[FrozenBatch]] = {}
    for row in sorted(rows, key=lambda row: (row.topic, row.partition, row.map_partition, row.number)):
        if row.partition >= 0:
            entry = ManifestEntry(row.map_partition, row.number, row.records, row.size, row.checksum & 0xFFFFFFFF)
            place = SpoolPlace(row.file, row.at) if hasattr(row, "file") else None
            where = TopicPartition(row.topic, row.partition)
            batches.setdefault(where, []).append(FrozenBatch(where, entry, place))
    return Manifest(
        {where: tuple(found) for where, found in batches.items()},
        lacks_content=any(row.partition == TOO_LONG for row in rows),
        digest=digest_text(digests) if digest else "",
    )
