"""A batch with some of its records taken out.

What stays, stays as it was: base offset, last offset, producer id, epoch and sequence of the batch, so that H(P) is
read from it as before; and the bytes of each record, whose offset and time are written relative to the batch's. Only
count, highest timestamp and checksum are made anew.

A tombstone that compaction meets for the first time gets a horizon, the time from which on it may go: with the bit for
it in the attributes, the base timestamp is that horizon (KIP-534), and the records' times are written relative to it.

    record => length VARINT, attributes INT8, timestamp_delta VARLONG, offset_delta VARINT,
              key_length VARINT (−1: none), key, value_length VARINT (−1: none), value, headers
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import compress, decompress
from fencepost.kernel.header import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_PREFIX,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    checksum,
)
from fencepost.kernel.record import MAX_DECOMPRESSED
from fencepost.types import Milliseconds

_HEADER: Final = Struct(">qiibIhiqqqhii")
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17


class RawRecord(NamedTuple):
    """One record, as bytes, and what compaction has to know of it."""

    data: memoryview
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    is_tombstone: bool


def delete_horizon(header: BatchHeader) -> Milliseconds | None:
    """From when on the tombstones of this batch may go; None if compaction has not met them yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def split(buffer: Buffer, at: int, header: BatchHeader) -> list[RawRecord]:
    """The records of the batch at `at`. CorruptBatch if they are not what the header says."""
    compressed = memoryview(buffer)[at + HEADER_SIZE : at + header.size]
    data = memoryview(decompress(header.codec, compressed, MAX_DECOMPRESSED)) if header.count else memoryview(b"")
    try:
        records = list(_records(data, header.count))
    except IndexError:
        raise CorruptBatch(f"the records of the batch at offset {header.base_offset} are cut off") from None
    if sum(len(record.data) for record in records) != len(data):
        raise CorruptBatch(f"the batch at offset {header.base_offset} has more bytes than records")
    return records


def rebuild(
    header: BatchHeader,
    records: Sequence[RawRecord],
    *,
    horizon: Milliseconds | None = None,
    transactional: bool | None = None,
) -> bytes:
    """The batch with only these of its records. `horizon`: the time from which on its tombstones may go, if that is to
    be written into it; `transactional`: what to make of that bit, if it is to change."""
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    if transactional is not None:
        attributes = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    parts: list[Buffer] = [record.data for record in records]
    if horizon is not None:
        shift = base_timestamp - horizon
        parts = [_shifted(record, shift) for record in records]
        attributes |= DELETE_HORIZON
        base_timestamp = horizon
    if records:
        payload = compress(header.codec, b"".join(parts))
    else:
        payload = b""
        attributes &= ~CODEC_MASK  # nothing to decompress; some readers would stumble over an empty stream
    max_timestamp = header.max_timestamp
    if records and not attributes & LOG_APPEND_TIME:
        max_timestamp = header.base_timestamp + max(record.timestamp_delta for record in records)
    batch = bytearray(
        _HEADER.pack(
            header.base_offset,
            HEADER_SIZE - LENGTH_PREFIX + len(payload),
            header.leader_epoch,
            header.magic,
            0,
            attributes,
            header.last_offset_delta,
            base_timestamp,
            max_timestamp,
            header.pid,
            header.epoch,
            header.base_sequence,
            len(records),
        )
    )
    batch += payload
    _CRC.pack_into(batch, _CRC_AT, checksum(batch, 0, len(batch)))
    return bytes(batch)


def _records(data: memoryview, count: int) -> Iterator[RawRecord]:
    at = 0
    for _ in range(count):
        length, body = _varint(data, at)
        end = body + length
        if length < 0 or end > len(data):
            raise IndexError
        timestamp_delta, here = _varint(data, body + 1)
        offset_delta, here = _varint(data, here)
        key_length, here = _varint(data, here)
        key = bytes(data[here : here + key_length]) if key_length >= 0 else None
        value_length, here = _varint(data, here + max(key_length, 0))
        if here + max(value_length, 0) > end:
            raise IndexError
        yield RawRecord(data[at:end], offset_delta, timestamp_delta, key, value_length < 0)
        at = end


def _shifted(record: RawRecord, shift: int) -> bytes:
    """The record with `shift` added to its timestamp delta."""
    data = record.data
    _, body = _varint(data, 0)
    _, behind = _varint(data, body + 1)
    delta = _encode_varint(record.timestamp_delta + shift)
    rest = bytes(data[behind:])
    return _encode_varint(1 + len(delta) + len(rest)) + bytes(data[body : body + 1]) + delta + rest


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The zigzag number at `at`, and the place behind it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise IndexError


def _encode_varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)
