"""Record batches in plain Python: the readable twin of `_batch.pyx`; tests check that both write equal bytes.

A batch is a header (see `header.py`) and its records, one after the other, compressed together:

    record:  length varint | attributes int8 (0) | timestamp delta varlong | offset delta varint
             | key length varint (−1: null) | key | value length varint (−1: null) | value
             | number of headers varint | headers
    header:  name length varint | name (UTF-8, never null) | value length varint (−1: null) | value

Varints are zigzag: 0, −1, 1, −2, … are written as 0, 1, 2, 3, …, seven bits a byte, lowest first, the top bit set on
all but the last byte. Deltas count from the header's base offset and base timestamp. `CorruptBatch` is raised for a
varint with more bits than its field, a length that points outside, a record whose length is wrong, offsets that do not
rise, and bytes after the last record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import compress, decompress, open_batch
from fencepost.kernel.header import (
    CONTROL,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    write_header,
)
from fencepost.kernel.record import MAX_BATCH_SIZE, MAX_DECOMPRESSED, Headers, Payload, Record, Row
from fencepost.types import Epoch, Offset, Pid, Sequence

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from fencepost.kernel.columns_py import ColumnSource

_INT32_BITS: Final = 32
_INT64_BITS: Final = 64
_MASK64: Final = 2**64 - 1
MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
NO_HEADERS: Final = b"\x00"


# --- varints ---


def varint(number: int) -> bytes:
    """Encode a number of up to 64 bits."""
    rest = (number << 1 ^ number >> 63) & _MASK64
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _wrap64(number: int) -> int:
    """Wrap to 64 bits, as Java does when it adds and subtracts timestamps."""
    return (number + 2**63 & _MASK64) - 2**63


def int32s(buffer: ReadableBuffer) -> memoryview:
    """View a buffer as 32-bit numbers in the machine's byte order."""
    view = memoryview(buffer).cast("B")
    return view[: len(view) // 4 * 4].cast("i")


class Cursor:
    """A position in a buffer, read front to back; reading beyond `end` raises `CorruptBatch`."""

    __slots__ = ("at", "buffer", "end")

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.at = 0
        self.end = len(buffer)

    def varint(self, bits: int = _INT32_BITS) -> int:
        number = shift = 0
        while True:
            if self.at >= self.end:
                raise CorruptBatch("a number is truncated")
            byte = self.buffer[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if number >> bits:
                raise CorruptBatch(f"a number does not fit {bits} bits")
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)
            shift += 7
            if shift >= bits:
                raise CorruptBatch(f"a number does not fit {bits} bits")

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.end - self.at:
            raise CorruptBatch(f"a length of {size}, but only {self.end - self.at} bytes are left")
        self.at += size
        return bytes(self.buffer[self.at - size : self.at])

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


# --- encoding ---


def _payload(data: Payload | object) -> bytes | None:
    if data is None:
        return None
    if isinstance(data, str):
        return data.encode()
    with memoryview(data) as view:  # type: ignore[arg-type]
        if not view.c_contiguous:
            raise BufferError("memoryview: underlying buffer is not C-contiguous")
        return view.tobytes()


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _headers(headers: Headers | None) -> bytes:
    if headers is None:
        return NO_HEADERS
    parts = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
        parts.append(nullable(name.encode()) + nullable(_payload(value)))
    return varint(len(parts)) + b"".join(parts)


class BatchBuilder:
    """One open batch. Not thread-safe, except that the GIL makes each `append` atomic."""

    def __init__(self, capacity: int = 16384) -> None:
        """`capacity` is a hint; the batch grows as needed."""
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self._records = bytearray()
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """The batch's size in bytes if it were built now, uncompressed."""
        return HEADER_SIZE + len(self._records)

    def append(self, key: Payload, value: Payload, timestamp: int, headers: Headers | None = None) -> int:
        """Append one record and return the batch's new size. If it raises, nothing was added."""
        if not MIN_INT64 <= timestamp <= MAX_INT64:
            raise OverflowError("a timestamp must fit into 64 bits")
        return self._put(_payload(key), _payload(value), timestamp, _headers(headers))

    def _put(self, key: bytes | None, value: bytes | None, timestamp: int, headers: bytes) -> int:
        base_timestamp = timestamp if not self.count else self.base_timestamp
        body = b"".join(
            (
                b"\x00",
                varint(_wrap64(timestamp - base_timestamp)),
                varint(self.count),
                nullable(key),
                nullable(value),
                headers,
            )
        )
        length = varint(len(body))
        if self.size + len(length) + len(body) > MAX_BATCH_SIZE:
            raise ValueError("the record does not fit into a batch")
        self._records += length + body
        self.max_timestamp = timestamp if not self.count else max(self.max_timestamp, timestamp)
        self.base_timestamp = base_timestamp
        self.count += 1
        return self.size

    def append_columns(
        self,
        source: ColumnSource,
        start: int,
        stop: int,
        *,
        timestamp: int,
        rows: ReadableBuffer | None = None,
        limit: int = MAX_BATCH_SIZE,
        checksum: bool = False,
    ) -> int:
        """Append rows start … stop−1 of the columns until the batch would exceed `limit` bytes (the first record may
        have any size), and return the next row. With `rows`, a buffer of 32-bit row numbers, append the rows that
        rows[start:stop] names. `timestamp` is for rows without one. If it raises, nothing was added. `checksum` changes
        nothing here; compiled, it sums the records at once.
        """
        picked = range(source.rows) if rows is None else int32s(rows)
        if not 0 <= start <= stop <= len(picked):
            raise IndexError(f"rows {start} to {stop} of {len(picked)}")
        before = len(self._records), self.count, self.base_timestamp, self.max_timestamp
        for i in range(start, stop):
            last = len(self._records), self.count, self.base_timestamp, self.max_timestamp
            try:
                size = self._put(*source.row(picked[i], timestamp))
            except ValueError:
                self._go_back(*before)
                raise
            if size > limit and self.count > 1:
                self._go_back(*last)
                return i
        return stop

    def _go_back(self, used: int, count: int, base_timestamp: int, max_timestamp: int) -> None:
        del self._records[used:]
        self.count, self.base_timestamp, self.max_timestamp = count, base_timestamp, max_timestamp

    def records(self) -> bytes:
        """Return the encoded records, uncompressed."""
        return bytes(self._records)

    def build(
        self,
        codec: int = 0,
        level: int | None = None,
        *,
        pid: int = -1,
        epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        base_offset: int = 0,
        control: bool = False,
    ) -> bytearray:
        """Return the whole batch, compressed and with its checksum. The builder does not change."""
        if not self.count:
            raise ValueError("a batch must have at least one record")
        payload = compress(codec, self._records, level)
        batch = bytearray(HEADER_SIZE + len(payload))
        batch[HEADER_SIZE:] = payload
        header = BatchHeader(
            base_offset=Offset(base_offset),
            batch_length=len(batch) - LENGTH_PREFIX,
            leader_epoch=-1,  # the broker sets it
            magic=MAGIC,
            crc=0,
            attributes=codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            pid=Pid(pid),
            epoch=Epoch(epoch),
            base_sequence=Sequence(base_sequence),
            count=self.count,
        )
        write_header(batch, header)
        return batch

    def work_ahead(self, codec: int = 0, level: int | None = None) -> None:
        """Leave everything to `finish`: only the compiled builder has a thread that works without the GIL."""

    def finish(
        self,
        codec: int = 0,
        level: int | None = None,
        *,
        pid: int = -1,
        epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> memoryview:
        """Return the batch as `build` does, writable (for stamps), and empty the builder."""
        batch = self.build(codec, level, pid=pid, epoch=epoch, base_sequence=base_sequence, transactional=transactional)
        self.clear()
        return memoryview(batch)

    def clear(self) -> None:
        """Empty the builder for the next batch; keep its memory."""
        self._records = bytearray()
        self.count = 0
        self.base_timestamp = self.max_timestamp = -1


def encode_batch(
    records: Iterable[Row],
    *,
    codec: int = 0,
    level: int | None = None,
    pid: int = -1,
    epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
    control: bool = False,
) -> bytearray:
    """Return a whole batch of (key, value, timestamp, headers) records."""
    builder = BatchBuilder()
    for key, value, timestamp, headers in records:
        builder.append(key, value, timestamp, headers)
    return builder.build(
        codec,
        level,
        pid=pid,
        epoch=epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        base_offset=base_offset,
        control=control,
    )


# --- decoding ---


unpack = decompress


def room(size: int) -> bytearray:
    """Return memory of `size` bytes with undefined content, for callers that fill all of it."""
    return bytearray(size)


def decode_batch(buffer: Buffer, at: int = 0, *, check: bool = True, max_bytes: int = MAX_DECOMPRESSED) -> list[Record]:
    """Return the records of the batch at `at`, also of a control batch. `check=False` skips the checksum only."""
    header, payload = open_batch(buffer, at, check, max_bytes)
    return decode_records(header, Cursor(memoryview(payload)))


_Row = TypeVar("_Row", bound=tuple[Any, ...])


def decode_rows(
    buffer: Buffer, kind: type[_Row], head: tuple[str | int, ...], *, start: int = MIN_INT64, stop: int = MAX_INT64
) -> list[_Row]:
    """Return the records with offsets start … stop−1 of a batch, as tuples of type `kind`: the fields of `head` (str or
    int), then those of a `Record`.
    """
    return [tuple.__new__(kind, (*head, *record)) for record in decode_batch(buffer) if start <= record.offset < stop]


def decode_records(header: BatchHeader, cursor: Cursor) -> list[Record]:
    records = []
    last_delta = -1
    for _ in range(header.count):
        record = _decode_record(header, cursor)
        delta = record.offset - header.base_offset
        if not last_delta < delta <= header.last_offset_delta:
            raise CorruptBatch(
                f"offset delta {delta} follows {last_delta}; the header's last is {header.last_offset_delta}"
            )
        last_delta = delta
        records.append(record)
    if cursor.at != cursor.end:
        raise CorruptBatch(f"{cursor.end - cursor.at} bytes left after the last record")
    return records


def _decode_record(header: BatchHeader, cursor: Cursor) -> Record:
    size = cursor.varint()
    if not 0 <= size <= cursor.end - cursor.at:
        raise CorruptBatch(f"a record of {size} bytes, but only {cursor.end - cursor.at} are left")
    end_of_batch, cursor.end = cursor.end, cursor.at + size
    cursor.take(1)  # attributes: none are defined
    timestamp = _wrap64(header.base_timestamp + cursor.varint(_INT64_BITS))
    offset = header.base_offset + cursor.varint()
    key = cursor.nullable()
    value = cursor.nullable()
    number_of_headers = cursor.varint()
    if number_of_headers < 0:
        raise CorruptBatch(f"a record with a negative number of headers ({number_of_headers})")
    headers = tuple(_decode_header(cursor) for _ in range(number_of_headers))
    if cursor.at != cursor.end:
        raise CorruptBatch(f"a record is {cursor.end - cursor.at} bytes longer than its fields")
    cursor.end = end_of_batch
    return Record(offset, header.max_timestamp if header.is_log_append_time else timestamp, key, value, headers)


def _decode_header(cursor: Cursor) -> tuple[str, bytes | None]:
    # Some clients accept any bytes as a name. Java shows them with replacement characters, and so do we.
    return cursor.take(cursor.varint()).decode(errors="replace"), cursor.nullable()


# --- partitioning ---


def murmur2(key: bytes) -> int:
    """Return Kafka's hash of a key: MurmurHash2, 32 bit, signed, with the seed that Kafka's clients share."""
    mix, mask = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * mix & mask
        hashed = hashed * mix & mask ^ (word ^ word >> 24) * mix & mask
    if whole < len(key):
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * mix & mask
    hashed = (hashed ^ hashed >> 13) * mix & mask
    hashed ^= hashed >> 15
    return hashed - 2**32 if hashed & 0x80000000 else hashed


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's default partitioner assigns to this key."""
    if partitions <= 0:
        raise ValueError("a topic must have at least one partition")
    return (murmur2(key) & 0x7FFFFFFF) % partitions
