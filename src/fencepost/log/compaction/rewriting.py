"""Rebuilding a batch without some of its records.

The batch keeps its base offset, last offset, producer id, epoch and sequence, so that H(P) is read from it as before.
The kept records keep their bytes, because their offsets and timestamps are relative to the batch's. Only the count, the
highest timestamp and the checksum change.

A tombstone that compaction meets for the first time gets a delete horizon, the time from which on it may be removed.
The horizon replaces the base timestamp, marked by a bit in the attributes (KIP-534), and the records' timestamps are
written relative to it.

    record => length VARINT, attributes INT8, timestamp_delta VARLONG, offset_delta VARINT,
              key_length VARINT (−1: none), key, value_length VARINT (−1: none), value, headers
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import compress, decompress
from fencepost.kernel.header import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LENGTH_PREFIX,
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
_HALF: Final = 2**63


def delete_horizon(header: BatchHeader) -> Milliseconds | None:
    """Return the time from which on the tombstones of this batch may be removed; None if it has no horizon yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def split(buffer: Buffer, at: int, header: BatchHeader) -> list[memoryview]:
    """Return the bytes of each record of the batch at `at`; raise CorruptBatch if the count in the header is wrong."""
    compressed = memoryview(buffer)[at + HEADER_SIZE : at + header.size]
    data = memoryview(decompress(header.codec, compressed, MAX_DECOMPRESSED)) if header.count else memoryview(b"")
    slices = []
    here = 0
    try:
        for _ in range(header.count):
            length, body = _varint(data, here)
            if length < 0 or body + length > len(data):
                raise IndexError
            slices.append(data[here : body + length])
            here = body + length
    except IndexError:
        raise CorruptBatch(f"the records of the batch at offset {header.base_offset} are cut off") from None
    if here != len(data):
        raise CorruptBatch(f"the batch at offset {header.base_offset} has more bytes than records")
    return slices


def rebuild(
    header: BatchHeader,
    records: Sequence[memoryview],
    max_timestamp: Milliseconds,
    *,
    horizon: Milliseconds | None = None,
    transactional: bool | None = None,
) -> bytes:
    """Return the batch with only these records, whose highest timestamp is `max_timestamp`.

    `horizon`: the delete horizon to set, if any; `transactional`: the new value of that bit, if it should change."""
    parts: list[Buffer] = list(records)
    if horizon is not None:
        parts = [_shifted(record, header.base_timestamp - horizon) for record in records]
    return assemble(header, b"".join(parts), len(records), max_timestamp, horizon=horizon, transactional=transactional)


def assemble(
    header: BatchHeader,
    records: Buffer,
    count: int,
    max_timestamp: Milliseconds,
    *,
    horizon: Milliseconds | None = None,
    transactional: bool | None = None,
) -> bytes:
    """Do the same as `rebuild` for concatenated records that are already relative to the horizon."""
    attributes = header.attributes
    base_timestamp = header.base_timestamp
    if transactional is not None:
        attributes = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    if horizon is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = horizon
    if count:
        payload = compress(header.codec, records)
    else:
        payload = b""
        attributes &= ~CODEC_MASK  # some readers fail to decompress an empty stream
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
            count,
        )
    )
    batch += payload
    _CRC.pack_into(batch, _CRC_AT, checksum(batch, 0, len(batch)))
    return bytes(batch)


def _shifted(record: memoryview, shift: int) -> bytes:
    """Return the record with `shift` added to its timestamp delta, in 64 bits as readers add it."""
    _, body = _varint(record, 0)
    delta, behind = _varint(record, body + 1)
    new_delta = _encode_varint((delta + shift + _HALF) % (2 * _HALF) - _HALF)
    rest = record[behind:]
    return _encode_varint(1 + len(new_delta) + len(rest)) + bytes(record[body : body + 1]) + new_delta + bytes(rest)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the zigzag number at `at`, and the position after it."""
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
