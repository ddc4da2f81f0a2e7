"""The header of a record batch (format v2): read, check and stamp it without touching the records.

offset  bytes  field
     0      8  base_offset              ┐ not under the checksum: the server stamps
     8      4  batch_length (after it)  │ offset and leader epoch without a new checksum
    12      4  partition_leader_epoch   │
    16      1  magic (2)                ┘
    17      4  crc (CRC-32C of everything behind it)
    21      2  attributes: 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23      4  last_offset_delta
    27      8  base_timestamp
    35      8  max_timestamp
    43      8  producer_id
    51      2  producer_epoch
    53      4  base_sequence
    57      4  record count
    61         records, compressed as one
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from fencepost.core.producers.dedup import SequencedBatch
from fencepost.core.producers.sequence import last_of
from fencepost.errors import CorruptBatch, UnsupportedFormat
from fencepost.types import Epoch, Milliseconds, Offset, Pid, Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE: Final = 61
LENGTH_PREFIX: Final = 12
"""The size of base offset and length, which `batch_length` does not count."""
MAGIC: Final = 2
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_HEADER: Final = Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH: Final = Struct(">qi")
_OFFSET: Final = Struct(">q")
_LEADER_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER: Final = Struct(">qhi")
_CRC_AT: Final = 17
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43


class BatchHeader(NamedTuple):
    base_offset: Offset
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: Milliseconds
    max_timestamp: Milliseconds
    pid: Pid
    epoch: Epoch
    base_sequence: Sequence
    count: int  # type: ignore[assignment]  # nobody calls a tuple's `count` on a header

    @property
    def size(self) -> int:
        """The size of the whole batch, header included."""
        return self.batch_length + LENGTH_PREFIX

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> Sequence:
        return last_of(self.base_sequence, self.last_offset_delta + 1)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_idempotent(self) -> bool:
        return self.pid >= 0

    def sequenced(self, crc: int | None, timestamp: Milliseconds) -> SequencedBatch:
        """Return what a ProducerTable judges. The number of sequences is that of the batch's offsets, not of its
        records, because compaction may have removed records."""
        pid, epoch, first, last = self.pid, self.epoch, self.base_sequence, self.last_sequence
        return SequencedBatch(
            pid, epoch, first, last, self.last_offset_delta + 1, crc, timestamp, self.is_transactional
        )


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at `at`. Check that it is complete and that its length is possible, not that the batch is
    whole."""
    if len(buffer) - at < LENGTH_PREFIX + 5:
        raise CorruptBatch(f"{len(buffer) - at} bytes are too short for a record batch")
    if buffer[at + _MAGIC_AT] != MAGIC:
        raise UnsupportedFormat(f"record format v{buffer[at + _MAGIC_AT]} is not supported, only v{MAGIC}")
    if len(buffer) - at < HEADER_SIZE:
        raise CorruptBatch(f"{len(buffer) - at} bytes are too short for the header of a record batch")
    header = BatchHeader._make(_HEADER.unpack_from(buffer, at))
    if header.batch_length < HEADER_SIZE - LENGTH_PREFIX:
        raise CorruptBatch(f"batch length {header.batch_length} is shorter than the header itself")
    return header


def write_header(buffer: bytearray | memoryview, header: BatchHeader, at: int = 0) -> None:
    """Write the header in front of the records, with their checksum (not `header.crc`)."""
    _HEADER.pack_into(buffer, at, *header)
    _CRC.pack_into(buffer, at + _CRC_AT, checksum(buffer, at, header.size))


def peek_size(buffer: Buffer, at: int = 0) -> int:
    """Return the size of the batch at `at`, from its first twelve bytes."""
    return int(_OFFSET_AND_LENGTH.unpack_from(buffer, at)[1]) + LENGTH_PREFIX


def split_batches(buffer: Buffer) -> Iterator[memoryview]:
    """Yield the whole batches in a fetched buffer. A broker may truncate the last one, which is left out."""
    view = memoryview(buffer)
    at = 0
    while len(view) - at >= LENGTH_PREFIX:
        size = peek_size(view, at)
        if size < HEADER_SIZE:
            raise CorruptBatch(f"a batch of {size} bytes is shorter than its header")
        if size > len(view) - at:
            return
        yield view[at : at + size]
        at += size


def _crc32c(data: memoryview) -> int:
    """Load the crc32c package on the first call. Its import takes longer than this whole package, and a producer never
    needs it, because the compiled kernel computes the checksums of its batches."""
    global _crc32c
    from crc32c import crc32c as _crc32c

    return int(_crc32c(data))


def checksum(buffer: Buffer, at: int, size: int) -> int:
    """Return the CRC-32C of the part of the batch that the checksum covers."""
    return int(_crc32c(memoryview(buffer)[at + _ATTRIBUTES_AT : at + size]))


def is_transactional(batch: Buffer) -> bool:
    """Tell if the batch says that it belongs to a transaction. The batch may be invalid in any other way."""
    return len(batch) > _ATTRIBUTES_AT + 1 and bool(_ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)[0] & TRANSACTIONAL)


def check_batch(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Return the header of the batch at `at`, with size and checksum verified; the records are not decoded."""
    header = read_header(buffer, at)
    if header.size > len(buffer) - at:
        raise CorruptBatch(f"batch of {header.size} bytes is truncated after {len(buffer) - at}")
    if checksum(buffer, at, header.size) != header.crc:
        raise CorruptBatch(f"checksum of the batch at offset {header.base_offset} does not match")
    return header


def stamp_offset(buffer: bytearray | memoryview, offset: int, leader_epoch: int, at: int = 0) -> None:
    """Write the fields that the server sets in an accepted batch; the checksum covers neither."""
    _OFFSET.pack_into(buffer, at, offset)
    _LEADER_EPOCH.pack_into(buffer, at + LENGTH_PREFIX, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, header: BatchHeader, now: Milliseconds, at: int = 0) -> None:
    """Set the time of every record of the batch to `now` (message.timestamp.type=LogAppendTime)."""
    _ATTRIBUTES.pack_into(buffer, at + _ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME)
    _OFFSET.pack_into(buffer, at + _MAX_TIMESTAMP_AT, now)
    _CRC.pack_into(buffer, at + _CRC_AT, checksum(buffer, at, header.size))


def stamp_producer(
    buffer: bytearray | memoryview,
    header: BatchHeader,
    pid: int,
    epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
    at: int = 0,
) -> None:
    """Set the producer of the batch, and compute the checksum again."""
    attributes = header.attributes | TRANSACTIONAL if transactional else header.attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(buffer, at + _ATTRIBUTES_AT, attributes)
    _PRODUCER.pack_into(buffer, at + _PRODUCER_AT, pid, epoch, base_sequence)
    _CRC.pack_into(buffer, at + _CRC_AT, checksum(buffer, at, header.size))
