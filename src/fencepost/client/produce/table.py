"""`send_arrow`: a whole table into the queues, partitioned and encoded by native calls without the GIL.

Each chunk's rows are grouped by partition, and encoded batch by batch straight from the columns. Whole batches go
behind the partition's open one, which keeps the order with earlier and later records. A table is checked before its
first row is accepted.

If the topic's partitions are unknown (PROD-1, PROD-5), the rows wait in order with `send`'s records, and the send
thread encodes them later. The ticket then reports a partition that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fencepost.client.cluster.checks import LIKE_SECONDS, before_1970, in_seconds
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import (
    NAME_THE_PARTITION,
    RECORD_OVERHEAD,
    EncodedRows,
    ProducerBatch,
    RowNumbers,
    WaitingRows,
    no_partition,
)
from fencepost.client.produce.queues import Queues, check_fits_memory
from fencepost.client.produce.ticket import Delivered, Settlement, Ticket
from fencepost.errors import (
    BufferFull,
    ConfigError,
    Expired,
    Fenced,
    FencepostError,
    NotOwned,
    RecordTooLarge,
    SendFailed,
    TablePersisted,
)
from fencepost.kernel import HEADER_SIZE, BatchBuilder, ColumnSource, group_rows, partition_rows
from fencepost.kernel.arrow import column_source, milliseconds
from fencepost.kernel.codecs import NONE
from fencepost.types import NO_TIMESTAMP, Milliseconds, TableRows

if TYPE_CHECKING:
    import pyarrow as pa

Rows: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.Table | pa.RecordBatch]"
"""What `send_arrow` takes. A reader or an iterator is read to its end before the first row is accepted."""

_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
_MISSING, _PERSISTED, _UNKNOWN = range(3)
"""What is known of a row, as a byte."""
_RUNS = re.compile(rb"\x00+|\x01+|\x02+")
_SMALLEST_PIECE = 4096
"""Minimum bytes of the rows that wait together for their topic's partitions."""


class DeliveredRun(NamedTuple):
    """Consecutive records of one partition."""

    topic: str
    partition: int
    offset: int
    """Of the first record; −1: the server has them but no longer knows their offset."""
    records: int


class TablePart(NamedTuple):
    """The rows of a table that share a batch, or that had none when they were accepted."""

    waits: Ticket | WaitingRows
    """The ticket of the batch's first record, or the rows that wait for their topic's partitions."""
    rows: RowNumbers

    def batches(self) -> Iterator[tuple[Ticket, RowNumbers]]:
        """Yield one ticket per batch. Rows that waited have all their tickets once the first is settled."""
        if isinstance(self.waits, Ticket):
            yield self.waits, self.rows
            return
        yield self.waits.ticket, self._rows_of_batch(0)
        for number, ticket in enumerate(self.waits.tickets[1:], 1):
            yield ticket, self._rows_of_batch(number)

    def _rows_of_batch(self, number: int) -> RowNumbers:
        assert isinstance(self.waits, WaitingRows)
        encoded = self.waits.encoded or ()
        is_placed = len(encoded) == len(self.waits.tickets)  # otherwise all of them failed together
        return encoded[number].rows if is_placed else self.rows


class BulkTicket:
    """The result of `send_arrow`. It is settled when all of the table's records are."""

    def __init__(self, parts: Sequence[TablePart], table_rows: int) -> None:
        self._parts = parts
        self._table_rows = table_rows

    def done(self) -> bool:
        return all(ticket.done() for ticket, _ in self._all())

    def result(self, timeout: float | None = None) -> tuple[DeliveredRun, ...]:
        """Wait for the answers. Return the records' places, or raise `exception`."""
        failure = self.exception(timeout)
        if failure is not None:
            raise failure.fresh()
        return tuple(run for ticket, _ in self._all() for run in _runs(ticket))

    def exception(self, timeout: float | None = None) -> FencepostError | None:
        """Wait for the answers. Return None if all rows are in the log; otherwise an error for the whole table, of the
        first failure's kind, whose `rows` says which rows are there. Its `persisted` is "partly" if some are."""
        self._wait(timeout)
        failures = [failure for ticket, _ in self._all() for failure in _failures(ticket.settlement)]
        if not failures:
            return None
        cause = next((error for error in failures if isinstance(error, Fenced)), failures[0])
        return _of_table(cause, self._look(), self._table_rows)

    def refused(self, cause: FencepostError) -> FencepostError:
        """Wait for the answers. Return the error of a table whose other rows were not accepted for this cause."""
        self.exception()
        return _of_table(cause, self._look(), self._table_rows)

    def rows(self, timeout: float | None = None) -> TableRows:
        """Wait for the answers. Return which rows of the table are in the log. Rows that were not accepted, because the
        memory was full, are missing."""
        self._wait(timeout)
        return self._look()

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else monotonic() + timeout
        for ticket, _ in self._all():
            ticket.exception(None if deadline is None else max(0.0, deadline - monotonic()))

    def _look(self) -> TableRows:
        marks = bytearray([_MISSING]) * self._table_rows
        for ticket, rows in self._all():
            at = 0
            for settlement in _leaves(ticket.settlement):
                rows.mark(marks, _mark(settlement.error), at, settlement.count)
                at += settlement.count
        found: dict[int, list[range]] = {_PERSISTED: [], _MISSING: [], _UNKNOWN: []}
        for run in _RUNS.finditer(marks):
            found[marks[run.start()]].append(range(run.start(), run.end()))
        return TableRows(tuple(found[_PERSISTED]), tuple(found[_MISSING]), tuple(found[_UNKNOWN]))

    def __await__(self) -> Generator[Any, None, tuple[DeliveredRun, ...]]:
        for ticket, _ in self._all():
            try:
                yield from ticket.__await__()
            except FencepostError:
                continue  # wait for the others too; `result` raises it
        return self.result(0)

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(part.rows.stop - part.rows.start for part in self._parts)

    def _all(self) -> Iterator[tuple[Ticket, RowNumbers]]:
        for part in self._parts:
            yield from part.batches()


class _TableSend(NamedTuple):
    """The settings that all chunks of a table share."""

    queues: Queues
    options: ProducerOptions
    topic: str
    now_ms: Milliseconds

    def keep(self, chunk: pa.RecordBatch, first: int) -> WaitingRows | None:
        """Let the rows wait for the topic's partitions. Return None if these are known by now."""
        import pyarrow as pa

        size = HEADER_SIZE + chunk.nbytes + RECORD_OVERHEAD * chunk.num_rows
        # A copy: the buffers are the caller's, who may fill them again when `send_arrow` returns.
        chunk = pa.ipc.read_record_batch(chunk.serialize(), chunk.schema)

        def encode(count: int) -> list[EncodedRows]:
            source = column_source(chunk)
            chosen = _choose(self.queues, self.options, self.topic, chunk, source, count)
            return list(self.encoded(source, first, chosen, count))

        return self.queues.keep_rows(self.topic, chunk.num_rows, size, self.now_ms, encode)

    def encoded(self, source: ColumnSource, first: int, partitions: Any, count: int) -> Iterator[EncodedRows]:
        """Yield encoded batches with their partitions. `first`: the number of the chunk's first row in the table."""
        limit, plain = self.options.batch_size, self.options.codec == NONE
        for partition, order, at, stop in _groups(source, partitions, count):
            while at < stop:
                builder, start = BatchBuilder(limit), at
                at = builder.append_columns(
                    source, at, stop, timestamp=self.now_ms, rows=order, limit=limit, checksum=plain
                )
                yield EncodedRows(partition, builder, RowNumbers(first, order, start, at))


def _nothing() -> None:
    """Let the table be sent."""


def send_table(
    queues: Queues,
    options: ProducerOptions,
    topic: str,
    table: Rows,
    now_ms: Milliseconds,
    check: Callable[[], None] = _nothing,
) -> BulkTicket:
    """`check`: raises if the producer may not send any more."""
    if options.serializes:
        raise ConfigError("send_arrow needs a producer without serializers: its columns are bytes or text already")
    chunks = []
    for chunk in _chunks(table):
        _check_columns(chunk.schema.names)
        if chunk.num_rows:
            chunks.append(_plain(chunk))
    sources = [column_source(chunk) for chunk in chunks]
    table_rows = 0
    for chunk in chunks:
        _check_sizes(chunk, options)
        _check_times(chunk)
        _check_headers(chunk, table_rows)
        table_rows += chunk.num_rows
    sending, parts = _TableSend(queues, options, topic, now_ms), list[TablePart]()
    first = 0
    try:
        check()
        if not queues.partition_count(topic):
            chunks, first = _keep_all(sending, chunks, parts)
            sources = [column_source(chunk) for chunk in chunks]
        count = queues.partition_count(topic)
        chosen = [
            _choose(queues, options, topic, chunk, source, count) for chunk, source in zip(chunks, sources, strict=True)
        ]
        for source, partitions in zip(sources, chosen, strict=True):
            for partition, builder, rows in sending.encoded(source, first, partitions, count):
                ticket = Ticket(queues.enqueue(topic, partition, builder), 0, builder.base_timestamp)
                parts.append(TablePart(ticket, rows))
            first += source.rows
    except BufferFull as error:
        error.accepted = BulkTicket(parts, table_rows)
        raise
    except FencepostError as error:  # the rows before may be in the log
        raise BulkTicket(parts, table_rows).refused(error) from error
    return BulkTicket(parts, table_rows)


def _chunks(table: Rows) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of what pyarrow's users have rows in."""
    import pyarrow as pa

    match table:
        case pa.RecordBatch():
            yield table
        case pa.Table():
            _check_columns(table.schema.names)  # it may have no batches
            yield from table.to_batches()
        case pa.RecordBatchReader():
            _check_columns(table.schema.names)
            yield from table
        case str() | bytes() | Mapping():
            raise _no_rows(table)
        case Iterable():
            for each in table:
                if not isinstance(each, pa.RecordBatch | pa.Table):
                    raise _no_rows(each)
                yield from _chunks(each)
        case _:
            raise _no_rows(table)


def _no_rows(given: object) -> TypeError:
    return TypeError(
        "send_arrow takes a pyarrow Table, RecordBatch or RecordBatchReader, or several Tables and RecordBatches, "
        f"not {type(given).__name__}"
    )


def _plain(chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the forms of binary and text that pyarrow can compute little with: dictionaries and views."""
    import pyarrow as pa
    from pyarrow import types

    for name in ("key", "value"):
        if name not in chunk.schema.names:
            continue
        at = chunk.schema.get_field_index(name)
        column = chunk.column(at)
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_binary_view(column.type) or types.is_string_view(column.type):
            column = column.cast(pa.large_binary() if types.is_binary_view(column.type) else pa.large_string())
        if column.type != chunk.schema.field(at).type:
            chunk = chunk.set_column(at, name, column)
    return chunk


def _keep_all(
    sending: _TableSend, chunks: list[pa.RecordBatch], parts: list[TablePart]
) -> tuple[list[pa.RecordBatch], int]:
    """Let the rows wait, in pieces that need room one by one. If the partitions become known, return the rest, and the
    number of its first row in the table."""
    first = 0
    largest = max(_SMALLEST_PIECE, min(sending.options.max_request_size, sending.options.buffer_memory // 16))
    for number, chunk in enumerate(chunks):
        rows = max(1, chunk.num_rows * largest // (chunk.nbytes + RECORD_OVERHEAD * chunk.num_rows))
        for at in range(0, chunk.num_rows, rows):
            kept = sending.keep(chunk.slice(at, rows), first)
            if kept is None:
                return [chunk.slice(at), *chunks[number + 1 :]], first
            parts.append(TablePart(kept, RowNumbers(first, None, 0, kept.records)))
            first += kept.records
    return [], first


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


def _check_sizes(chunk: pa.RecordBatch, options: ProducerOptions) -> None:
    import pyarrow.compute as pc

    lengths = [
        pc.binary_length(chunk.column(name))
        for name in ("key", "value")
        if name in chunk.schema.names and chunk.column(name).null_count < chunk.num_rows
    ]
    if not lengths:
        return
    bound = sum(pc.max(length).as_py() or 0 for length in lengths) + RECORD_OVERHEAD
    if bound + HEADER_SIZE <= min(options.max_request_size, options.buffer_memory // 2):
        return  # the largest key and the largest value would fit together
    both = [pc.fill_null(length, 0).cast("int64") for length in lengths]
    largest = pc.max(both[0] if len(both) == 1 else pc.add(*both)).as_py() + RECORD_OVERHEAD
    if largest + HEADER_SIZE > options.max_request_size:
        raise RecordTooLarge(
            f"a record of about {largest} bytes does not fit max_request_size={options.max_request_size}"
        )
    check_fits_memory(largest + HEADER_SIZE, options)


def _check_headers(chunk: pa.RecordBatch, first: int) -> None:
    """Reject headers without a name. `first`: the number of the chunk's first row in the table."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    headers = chunk.column("headers") if "headers" in chunk.schema.names else None
    if headers is None or types.is_null(headers.type) or types.is_map(headers.type):
        return
    names = pc.struct_field(headers.flatten(), [0])
    if names.null_count:
        at = pc.index(names.is_null(), pa.scalar(True)).as_py()
        raise ValueError(f"row {first + headers.value_parent_indices()[at].as_py()}: a header has no name")


def _check_times(chunk: pa.RecordBatch) -> None:
    """Reject times before 1970, and integers that were meant in seconds: a column of the type timestamp says its
    unit."""
    import pyarrow.compute as pc
    from pyarrow import types

    if "timestamp" not in chunk.schema.names:
        return
    column = chunk.column("timestamp")
    times = milliseconds(column)
    first, end = LIKE_SECONDS
    if (least := pc.min(times).as_py()) is None or least >= end:
        return
    if least < NO_TIMESTAMP:
        raise before_1970("column timestamp", least)
    wrong = times.filter(pc.and_(pc.greater_equal(times, first), pc.less(times, end)))
    if len(wrong) and types.is_integer(column.type):
        raise in_seconds("column timestamp", wrong[0].as_py())


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


def _leaves(settlement: Settlement) -> Iterator[Settlement]:
    """Yield the batches into which a batch was split, in order; or itself."""
    if isinstance(settlement, ProducerBatch) and settlement.parts is not None:
        for part in settlement.parts:
            yield from _leaves(part)
    else:
        yield settlement


def _failures(settlement: Settlement) -> Iterator[FencepostError]:
    """Yield the failures in a batch, and mark them as seen."""
    for each in _leaves(settlement):
        each.look_at_all()
        if each.error is not None:
            yield each.error


def _mark(error: FencepostError | None) -> int:
    if error is None:
        return _PERSISTED
    # Other errors are of records that failed before they were sent.
    return _UNKNOWN if isinstance(error, SendFailed) and error.persisted == "unknown" else _MISSING


def _of_table(cause: FencepostError, rows: TableRows, table_rows: int) -> FencepostError:
    """Return an error of the same kind as `cause` for a whole table."""
    there, missing, unknown = (sum(map(len, ranges)) for ranges in rows)
    kind = next((kind for kind in (Expired, Fenced, SendFailed) if type(cause) is kind), None)
    if kind is None and not there and not unknown:  # not a batch that failed, but a row that cannot be sent
        if isinstance(cause, SendFailed):
            cause.rows = rows
        return cause
    persisted: TablePersisted = "partly" if there else "unknown" if unknown else "no"
    message = cause.message if isinstance(cause, SendFailed) else str(cause)
    if there or (missing and unknown):
        message += (
            f"; of the table's {table_rows} rows {there} are in the log, {missing} are not, and {unknown} may be: "
            "`rows` of this error says which"
        )
    topic, partition = (cause.topic, cause.partition) if isinstance(cause, SendFailed) else ("", None)
    error = (kind or SendFailed)(
        message, persisted=persisted, code=cause.code, topic=topic, partition=partition, count=missing + unknown
    )
    error.rows = rows
    error.__cause__ = cause
    return error


def _runs(ticket: Ticket) -> Iterator[DeliveredRun]:
    for settlement in _leaves(ticket.settlement):
        where = settlement.outcome(Ticket(settlement, 0, ticket.timestamp))
        assert isinstance(where, Delivered)
        yield DeliveredRun(where.topic, where.partition, where.offset, settlement.count)
