"""Fetched batches as a producer would send them, for copies.

A batch is taken whole, changed in place, wherever that is possible. It is decoded and encoded again only if the range
starts or ends inside it, if it was compacted (its count is not its range of offsets), if its attributes say
LogAppendTime or a delete horizon, if it is larger than the target accepts, or if it and its neighbours are so small
that a request for each would cost more (`outgoing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fencepost.client.read.ranges import Range
from fencepost.client.read.scan import FetchedBatch
from fencepost.errors import RecordTooLarge
from fencepost.kernel import BatchBuilder, Record, check_batch, decode_batch, stamp_offset
from fencepost.kernel.header import DELETE_HORIZON

_SMALL: Final = 16 << 10
"""Batches with fewer bytes are put together."""
_TOGETHER: Final = 256 << 10
"""Bytes, before compression, of a batch that was put together."""


class OutgoingBatch(NamedTuple):
    """Records without a gap between their offsets, encoded."""

    start: int
    stop: int
    data: bytearray | memoryview


def whole_batch(batch: FetchedBatch, wanted: Range, max_bytes: int) -> memoryview | None:
    """Return the batch as a producer would send it, changed in place; None if it must be decoded."""
    if not _is_plain(batch, wanted, max_bytes):
        return None
    check_batch(batch.data)  # first: a new checksum would hide damage
    stamp_offset(batch.data, 0, -1)
    return batch.data


def encoded_again(batch: FetchedBatch, wanted: Range, max_bytes: int) -> Iterable[bytearray]:
    """Encode the records of the range again, with the same codec. The result is deterministic, so that a second attempt
    repeats the first."""
    codec = batch.header.codec
    builder = BatchBuilder()
    for record in _records(batch, wanted):
        if builder.count and builder.size + _size(record) > max_bytes:
            yield _built(builder, codec, max_bytes, wanted)
            builder = BatchBuilder()
        builder.append(record.key, record.value, record.timestamp, record.headers)
    if builder.count:
        yield _built(builder, codec, max_bytes, wanted)


def outgoing(batches: Iterable[FetchedBatch], wanted: Range, max_bytes: int) -> Iterator[OutgoingBatch]:
    """Yield the records of the range in batches that have no gap inside. Put small neighbours together."""
    limit = min(max_bytes, _TOGETHER)
    small: FetchedBatch | None = None
    """A small batch that goes on whole, unless its neighbour is small, too."""
    joined = _Joined(max_bytes, wanted)
    for batch in batches:
        header = batch.header
        if small is not None and header.base_offset != small.header.next_offset:
            yield _taken(small, wanted, max_bytes)
            small = None
        is_plain = _is_plain(batch, wanted, max_bytes)
        if is_plain and header.size >= _SMALL:
            yield from _end(small, joined, wanted, max_bytes)
            small = None
            yield _taken(batch, wanted, max_bytes)
        elif is_plain and small is None and joined.next != header.base_offset:
            yield from joined.take()
            small = batch
        else:
            for each in (batch,) if small is None else (small, batch):
                yield from joined.add(each, limit)
            small = None
    yield from _end(small, joined, wanted, max_bytes)


def _end(small: FetchedBatch | None, joined: _Joined, wanted: Range, max_bytes: int) -> Iterator[OutgoingBatch]:
    yield from joined.take()
    if small is not None:
        yield _taken(small, wanted, max_bytes)


class _Joined:
    """Records of several batches, for one."""

    def __init__(self, max_bytes: int, wanted: Range) -> None:
        self._max_bytes = max_bytes
        self._wanted = wanted
        self._builder = BatchBuilder()
        self._codec = 0
        self.start = 0
        self.next: int | None = None
        """The offset behind the last record; None if there is none."""

    def add(self, batch: FetchedBatch, limit: int) -> Iterator[OutgoingBatch]:
        """Add the batch's records, and yield what must leave before."""
        if self._codec != batch.header.codec:
            yield from self.take()
            self._codec = batch.header.codec
        for record in _records(batch, self._wanted):
            builder = self._builder
            if builder.count and (record.offset != self.next or builder.size + _size(record) > limit):
                yield from self.take()
                builder = self._builder
            if not builder.count:
                self.start = record.offset
            builder.append(record.key, record.value, record.timestamp, record.headers)
            self.next = record.offset + 1

    def take(self) -> Iterator[OutgoingBatch]:
        if self.next is not None:
            data = _built(self._builder, self._codec, self._max_bytes, self._wanted)
            yield OutgoingBatch(self.start, self.next, data)
        self._builder, self.next = BatchBuilder(), None


def _is_plain(batch: FetchedBatch, wanted: Range, max_bytes: int) -> bool:
    header = batch.header
    return not (
        header.base_offset < wanted.start
        or header.next_offset > wanted.stop
        or header.count != header.last_offset_delta + 1
        or header.is_log_append_time
        or header.attributes & DELETE_HORIZON
        or header.size > max_bytes
    )


def _taken(batch: FetchedBatch, wanted: Range, max_bytes: int) -> OutgoingBatch:
    data = whole_batch(batch, wanted, max_bytes)
    assert data is not None
    return OutgoingBatch(batch.header.base_offset, batch.header.next_offset, data)


def _records(batch: FetchedBatch, wanted: Range) -> Iterator[Record]:
    return (record for record in decode_batch(batch.data) if wanted.start <= record.offset < wanted.stop)


def _size(record: Record) -> int:
    """Return an upper bound of the record's encoded size."""
    headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 40


def _built(builder: BatchBuilder, codec: int, max_bytes: int, wanted: Range) -> bytearray:
    built = builder.build(codec)
    if len(built) > max_bytes:
        built = builder.build(0)  # incompressible data grows when compressed, and may fit without
    if len(built) > max_bytes:
        raise RecordTooLarge(
            f"{wanted}: a batch of one record has {len(built)} bytes, and the target accepts {max_bytes}: raise its "
            "max.message.bytes"
        )
    return built
