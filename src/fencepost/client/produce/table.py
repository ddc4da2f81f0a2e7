"""`send_arrow`: a whole table into the queues, partitioned and encoded by native calls without the GIL.

Each chunk's rows are grouped by partition, and encoded batch by batch straight from the columns. Whole batches go
behind the partition's open one, which keeps the order with earlier and later records. A table is checked before its
first row is accepted.

If the topic's partitions are unknown (PROD-1, PROD-5), the rows are encoded in their order, and divided among the
partitions later, like `send`'s records. The ticket then reports a partition that does not exist.
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
    UNDESIGNATED,
    EncodedRows,
    RowNumbers,
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
"""Bytes of a batch, at least, that a table is cut into where memory is scarce."""


class DeliveredRun(NamedTuple):
    """Consecutive records of one partition."""

    topic: str
    partition: int
    offset: int
    """Of the first record; −1: the server has them but no longer knows their offset."""
    records: int


class TablePart(NamedTuple):
    """Rows of a table that are side by side in a batch."""

    batch: Settlement
    at: int
    """The first row's record in the batch."""
    rows: RowNumbers

    def moved(self) -> list[TablePart]:
        """Return the same rows where they are since their batch was divided."""
        moved = self.batch.moved
        assert moved is not None
        if moved.order is not None:  # it had these rows only
            order, first = bytes(moved.order), self.rows.first + self.rows.start
            return [TablePart(run.settlement, run.at, RowNumbers(first, order, *run[:2])) for run in moved.runs]
        found = []
        for run in moved.runs:
            start, stop = max(run.start, self.at), min(run.stop, self.at + self.rows.number)
            if start < stop:
                rows = self.rows.piece(start - self.at, stop - self.at)
                found.append(TablePart(run.settlement, run.at + start - run.start, rows))
        return found

    @property
    def ticket(self) -> Ticket:
        """A ticket of the first row."""
        return Ticket(self.batch, self.at, NO_TIMESTAMP)


class BulkTicket:
    """The result of `send_arrow`. It is settled when all of the table's records are."""

    def __init__(self, parts: Sequence[TablePart], table_rows: int) -> None:
        self._parts = parts
        self._table_rows = table_rows

    def done(self) -> bool:
        return all(part.ticket.done() for part in self._all())

    def result(self, timeout: float | None = None) -> tuple[DeliveredRun, ...]:
        """Wait for the answers. Return the records' places, or raise `exception`."""
        failure = self.exception(timeout)
        if failure is not None:
            raise failure.fresh()
        return tuple(_run(part) for part in self._all())

    def exception(self, timeout: float | None = None) -> FencepostError | None:
        """Wait for the answers. Return None if all rows are in the log; otherwise an error for the whole table, of the
        first failure's kind, whose `rows` says which rows are there. Its `persisted` is "partly" if some are."""
        self._wait(timeout)
        failures = []
        for batch, at, rows in self._all():
            if batch.error is not None:
                batch.look_at(at, at + rows.number)
                failures.append(batch.error)
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
        for part in self._all():
            part.ticket.exception(None if deadline is None else max(0.0, deadline - monotonic()))

    def _look(self) -> TableRows:
        marks = bytearray([_MISSING]) * self._table_rows
        for batch, _, rows in self._all():
            rows.mark(marks, _mark(batch.error))
        found: dict[int, list[range]] = {_PERSISTED: [], _MISSING: [], _UNKNOWN: []}
        for run in _RUNS.finditer(marks):
            found[marks[run.start()]].append(range(run.start(), run.end()))
        return TableRows(tuple(found[_PERSISTED]), tuple(found[_MISSING]), tuple(found[_UNKNOWN]))

    def __await__(self) -> Generator[Any, None, tuple[DeliveredRun, ...]]:
        for part in self._all():
            try:
                yield from part.ticket.__await__()
            except FencepostError:
                continue  # wait for the others too; `result` raises it
        return self.result(0)

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(part.rows.number for part in self._parts)

    def _all(self) -> Iterator[TablePart]:
        """Yield the rows batch by batch. If a batch is divided while the caller waits for it, yield its rows again."""
        left = [*reversed(self._parts)]
        while left:
            part = left.pop()
            if part.batch.moved is None:
                yield part
            if part.batch.moved is not None:
                left += reversed(part.moved())


class _TableSend(NamedTuple):
    """The settings that all chunks of a table share."""

    queues: Queues
    options: ProducerOptions
    topic: str
    now_ms: Milliseconds

    def encoded(self, source: ColumnSource, first: int, partitions: Any, count: int) -> Iterator[EncodedRows]:
        """Yield encoded batches with their partitions. `first`: the number of the chunk's first row in the table."""
        plain = self.options.codec == NONE
        limit = min(self.options.batch_size, max(_SMALLEST_PIECE, self.options.buffer_memory // 16))
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
        count = queues.partition_count(topic)
        chosen = [
            _choose(queues, options, topic, chunk, source, count) if count else UNDESIGNATED
            for chunk, source in zip(chunks, sources, strict=True)
        ]
        for chunk, source, partitions in zip(chunks, sources, chosen, strict=True):
            named = None if count else _named(chunk)
            for partition, builder, rows in sending.encoded(source, first, partitions, count):
                names = named and {
                    at: named[row] for at, row in enumerate(range(rows.start, rows.stop)) if row in named
                }
                parts.append(TablePart(queues.enqueue(topic, partition, builder, names), 0, rows))
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
        chosen = pa.array([options.choose_partition(key, count) for key in as_bytes], pa.int32())
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


def _named(chunk: pa.RecordBatch) -> dict[int, int]:
    """Return the partitions that rows name, by the row's number."""
    if "partition" not in chunk.schema.names:
        return {}
    named = chunk.column("partition").cast("int64").to_pylist()
    return {row: partition for row, partition in enumerate(named) if partition is not None}


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


def _run(rows: TablePart) -> DeliveredRun:
    where = rows.batch.outcome(rows.ticket)
    assert isinstance(where, Delivered)
    return DeliveredRun(where.topic, where.partition, where.offset, rows.rows.number)
