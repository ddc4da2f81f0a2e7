"""`send_arrow`: a whole table into the queues, partitioned and encoded by native calls without the GIL.

Each chunk's rows are grouped by partition, and encoded batch by batch straight from the columns. Whole batches go
behind the partition's open one, which keeps the order with earlier and later records. A table is checked before its
first row is accepted.

If the topic's partitions are unknown (PROD-1, PROD-5), the rows wait in order with `send`'s records, and the send
thread encodes them later. The ticket then reports a partition that does not exist.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import (
    NAME_THE_PARTITION,
    RECORD_OVERHEAD,
    EncodedRows,
    ProducerBatch,
    WaitingRows,
    no_partition,
)
from fencepost.client.produce.queues import Queues
from fencepost.client.produce.ticket import Delivered, Settlement, Ticket
from fencepost.errors import BufferFull, ConfigError, FencepostError, NotOwned, RecordTooLarge
from fencepost.kernel import HEADER_SIZE, BatchBuilder, ColumnSource, group_rows, partition_rows
from fencepost.kernel.arrow import column_source
from fencepost.kernel.codecs import NONE
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
_SMALLEST_PIECE = 4096
"""Minimum bytes of the rows that wait together for their topic's partitions."""


class DeliveredRun(NamedTuple):
    """Consecutive records of one partition."""

    topic: str
    partition: int
    offset: int
    """Of the first record; −1: the server has them but no longer knows their offset."""
    records: int


class BulkTicket:
    """The result of `send_arrow`. It is settled when all of the table's records are."""

    def __init__(self, parts: Sequence[Ticket | WaitingRows]) -> None:
        self._parts = parts
        """A ticket of each batch's first record, or rows that had no batch when they were accepted."""

    def done(self) -> bool:
        return all(ticket.done() for ticket in self._all())

    def result(self, timeout: float | None = None) -> tuple[DeliveredRun, ...]:
        """Wait for the answers. Return the records' places, or raise the first failure; its `count` records share
        it."""
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        return tuple(run for ticket in self._all() for run in _runs(ticket))

    def exception(self, timeout: float | None = None) -> FencepostError | None:
        deadline = None if timeout is None else monotonic() + timeout
        first: FencepostError | None = None
        for ticket in self._all():
            left = None if deadline is None else max(0.0, deadline - monotonic())
            ticket.exception(left)
            first = first or _failure(ticket.settlement)
        return first

    def __await__(self) -> Generator[Any, None, tuple[DeliveredRun, ...]]:
        for ticket in self._all():
            try:
                yield from ticket.__await__()
            except FencepostError:
                continue  # wait for the others too; `result` raises it
        return self.result(0)

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(part.records if isinstance(part, WaitingRows) else part.settlement.count for part in self._parts)

    def _all(self) -> Iterator[Ticket]:
        """Yield one ticket per batch. Rows that waited have all their tickets once the first is settled."""
        for part in self._parts:
            if isinstance(part, WaitingRows):
                yield part.ticket
                yield from part.tickets[1:]
            else:
                yield part


class _TableSend(NamedTuple):
    """The settings that all chunks of a table share."""

    queues: Queues
    options: ProducerOptions
    topic: str
    now_ms: Milliseconds

    def keep(self, chunk: pa.RecordBatch) -> WaitingRows | None:
        """Let the rows wait for the topic's partitions. Return None if these are known by now."""
        size = HEADER_SIZE + chunk.nbytes + RECORD_OVERHEAD * chunk.num_rows

        def encode(count: int) -> list[EncodedRows]:
            source = column_source(chunk)
            return list(
                self.encoded(source, _choose(self.queues, self.options, self.topic, chunk, source, count), count)
            )

        return self.queues.keep_rows(self.topic, chunk.num_rows, size, self.now_ms, encode)

    def encoded(self, source: ColumnSource, partitions: Any, count: int) -> Iterator[EncodedRows]:
        """Yield encoded batches with their partitions."""
        limit, plain = self.options.batch_size, self.options.codec == NONE
        for partition, order, at, stop in _groups(source, partitions, count):
            while at < stop:
                builder = BatchBuilder(limit)
                at = builder.append_columns(
                    source, at, stop, timestamp=self.now_ms, rows=order, limit=limit, checksum=plain
                )
                yield EncodedRows(partition, builder)


def send_table(
    queues: Queues, options: ProducerOptions, topic: str, table: pa.Table | pa.RecordBatch, now_ms: Milliseconds
) -> BulkTicket:
    import pyarrow as pa

    if options.serializes:
        raise ConfigError("send_arrow needs a producer without serializers: its columns are bytes or text already")
    _check_columns(table.schema.names)
    chunks = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    chunks = [chunk for chunk in chunks if chunk.num_rows]
    sources = [column_source(chunk) for chunk in chunks]
    for chunk in chunks:
        _check_sizes(chunk, options.max_request_size)
    sending, parts = _TableSend(queues, options, topic, now_ms), list[Ticket | WaitingRows]()
    try:
        if not queues.partition_count(topic):
            chunks = _keep_all(sending, chunks, parts)
            sources = [column_source(chunk) for chunk in chunks]
        count = queues.partition_count(topic)
        chosen = [
            _choose(queues, options, topic, chunk, source, count) for chunk, source in zip(chunks, sources, strict=True)
        ]
        for source, partitions in zip(sources, chosen, strict=True):
            for partition, builder in sending.encoded(source, partitions, count):
                parts.append(Ticket(queues.enqueue(topic, partition, builder), 0, builder.base_timestamp))
    except BufferFull as error:
        error.accepted = BulkTicket(parts)
        raise
    return BulkTicket(parts)


def _keep_all(
    sending: _TableSend, chunks: list[pa.RecordBatch], parts: list[Ticket | WaitingRows]
) -> list[pa.RecordBatch]:
    """Let the rows wait, in pieces that need room one by one. Return the rest if the partitions become known."""
    largest = max(_SMALLEST_PIECE, min(sending.options.max_request_size, sending.options.buffer_memory // 16))
    for number, chunk in enumerate(chunks):
        rows = max(1, chunk.num_rows * largest // (chunk.nbytes + RECORD_OVERHEAD * chunk.num_rows))
        for at in range(0, chunk.num_rows, rows):
            kept = sending.keep(chunk.slice(at, rows))
            if kept is None:
                return [chunk.slice(at), *chunks[number + 1 :]]
            parts.append(kept)
    return []


def _groups(source: ColumnSource, partitions: Any, count: int) -> Iterator[tuple[int, Any, int, int]]:
    """Yield (partition, row numbers, start, stop) for each partition that gets rows; no row numbers: rows in order."""
    if isinstance(partitions, int):
        yield partitions, None, 0, source.rows
        return
    order, starts = group_rows(partitions, count)
    for partition in range(count):
        if starts[partition] < starts[partition + 1]:
            yield partition, order, starts[partition], starts[partition + 1]


def _check_columns(names: list[str]) -> None:
    """Reject unknown columns: rows of an ignored `topic` column would go to the wrong topic."""
    strange = [repr(name) for name in names if name not in _COLUMNS]
    if strange:
        kept = [name for name in _COLUMNS if name in names]
        raise ValueError(
            f"send_arrow takes the columns {', '.join(_COLUMNS)}, not {', '.join(strange)}: use .select({kept})"
        )


def _check_sizes(chunk: pa.RecordBatch, max_request_size: int) -> None:
    import pyarrow.compute as pc

    lengths = [
        pc.binary_length(chunk.column(name))
        for name in ("key", "value")
        if name in chunk.schema.names and chunk.column(name).null_count < chunk.num_rows
    ]
    if not lengths:
        return
    bound = sum(pc.max(length).as_py() or 0 for length in lengths) + RECORD_OVERHEAD
    if bound + HEADER_SIZE <= max_request_size:
        return  # the largest key and the largest value would fit together
    both = [pc.fill_null(length, 0).cast("int64") for length in lengths]
    largest = pc.max(both[0] if len(both) == 1 else pc.add(*both)).as_py() + RECORD_OVERHEAD
    if largest + HEADER_SIZE > max_request_size:
        raise RecordTooLarge(f"a record of about {largest} bytes does not fit max_request_size={max_request_size}")


def _choose(
    queues: Queues, options: ProducerOptions, topic: str, chunk: pa.RecordBatch, source: ColumnSource, count: int
) -> Any:
    """Return a partition per row as int32: the named one, else its key's, else one for all other rows. Return a single
    number if all rows go to the same partition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if options.partitioner is None and not {"key", "partition"} & set(chunk.schema.names):
        if queues.needs_partitions and count > 1:
            raise FencepostError(NAME_THE_PARTITION)
        return queues.next_partition(topic, count)
    if options.partitioner is not None:
        keys = chunk.column("key").to_pylist() if "key" in chunk.schema.names else [None] * chunk.num_rows
        as_bytes = [key.encode() if isinstance(key, str) else key for key in keys]
        chosen = pa.array([options.partitioner(key, count) for key in as_bytes], pa.int32())
    else:
        block = partition_rows(source, count, keyless=-1)
        if _all_by_key(chunk) and queues.owned(topic) is None:
            return block
        chosen = pa.Array.from_buffers(pa.int32(), chunk.num_rows, [None, pa.py_buffer(block)])
    named = chunk.column("partition").cast(pa.int32()) if "partition" in chunk.schema.names else None
    if (owned := queues.owned(topic)) is not None:
        _check_owned(chosen if named is None else chosen.filter(named.is_null()), topic, owned, count)
    if named is not None:
        _check_partitions(named, count)
        chosen = pc.coalesce(named, chosen) if named.null_count else named
    if options.partitioner is None and pc.any(pc.equal(chosen, -1)).as_py():
        if queues.needs_partitions and count > 1:
            raise FencepostError(NAME_THE_PARTITION)
        keyless = pa.scalar(queues.next_partition(topic, count), pa.int32())
        chosen = pc.if_else(pc.equal(chosen, -1), keyless, chosen)
    _check_partitions(chosen, count)
    return memoryview(chosen.buffers()[1])[4 * chosen.offset : 4 * (chosen.offset + len(chosen))]


def _all_by_key(chunk: pa.RecordBatch) -> bool:
    """Tell if every row has a key, and none names a partition."""
    names = chunk.schema.names
    return "key" in names and "partition" not in names and chunk.column("key").null_count == 0


def _check_owned(chosen: pa.Array, topic: str, owned: frozenset[int], count: int) -> None:
    """Raise NotOwned if a key chose a partition that is not owned. `chosen`: of the rows that name no partition; −1: no
    key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    strange = chosen.filter(pc.invert(pc.is_in(chosen, pa.array([-1, *owned], pa.int32()))))
    if len(strange):
        raise NotOwned(topic, strange[0].as_py(), owned, count)


def _check_partitions(chosen: pa.Array, count: int) -> None:
    import pyarrow.compute as pc

    bounds = pc.min_max(chosen).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < count:
        wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
        raise no_partition(wrong, count)


def _failure(settlement: Settlement) -> FencepostError | None:
    """Return the first failure in a batch, and mark the batch's failures as seen."""
    if isinstance(settlement, ProducerBatch) and settlement.parts is not None:
        failures = [_failure(part) for part in settlement.parts]
        return next((failure for failure in failures if failure is not None), None)
    settlement.look_at_all()
    return settlement.error


def _runs(ticket: Ticket) -> Iterator[DeliveredRun]:
    settlement = ticket.settlement
    if isinstance(settlement, ProducerBatch) and settlement.parts is not None:
        for part in settlement.parts:
            yield from _runs(Ticket(part, 0, ticket.timestamp))
        return
    where = settlement.outcome(ticket)
    assert isinstance(where, Delivered)
    yield DeliveredRun(where.topic, where.partition, where.offset, settlement.count)
