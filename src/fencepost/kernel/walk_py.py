"""Walks over the records of a batch, in plain Python: the readable twin of `_walk.pxi`, which creates no objects and
needs no GIL. The server walks through every batch that it receives, and compaction through whole logs.
"""

from __future__ import annotations

from hashlib import blake2b
from os import urandom
from typing import Final

from fencepost.kernel.batch_py import MIN_INT64, Cursor, decode_records, varint
from fencepost.kernel.codecs import open_batch
from fencepost.kernel.header import BatchHeader, Buffer
from fencepost.kernel.record import MAX_DECOMPRESSED, Record, Scan, Sifted
from fencepost.types import NO_TIMESTAMP

_DIGEST_SIZE: Final = 16
_SECRET_SIZE: Final = 16
_HALF: Final = 2**63


def _open(buffer: Buffer, at: int, check: bool, max_bytes: int) -> tuple[BatchHeader, memoryview, list[Record]]:
    header, payload = open_batch(buffer, at, check, max_bytes)
    view = memoryview(payload)
    return header, view, decode_records(header, Cursor(view))


def scan_batch(
    buffer: Buffer,
    at: int = 0,
    *,
    header: BatchHeader | None = None,
    check: bool = True,
    max_bytes: int = MAX_DECOMPRESSED,
) -> Scan:
    """Read every length, offset and time of the batch at `at`; raise CorruptBatch if it cannot be decoded. With a
    `header`, which the caller has read and checked, the checksum is not computed again.
    """
    _, view, records = _open(buffer, at, check and header is None, max_bytes)
    times = [record.timestamp for record in records]
    return Scan(
        len(view),
        min((time for time in times if time != NO_TIMESTAMP), default=NO_TIMESTAMP),
        max([*times, NO_TIMESTAMP]),
        sum(record.key is None for record in records),
    )


def find_time(
    buffer: Buffer,
    at: int = 0,
    *,
    timestamp: int,
    start: int = MIN_INT64,
    check: bool = True,
    max_bytes: int = MAX_DECOMPRESSED,
) -> tuple[int, int] | None:
    """Return offset and time of the first record from offset `start` on that is not older than `timestamp`, or None."""
    for record in _open(buffer, at, check, max_bytes)[2]:
        if record.offset >= start and record.timestamp >= timestamp:
            return record.offset, record.timestamp
    return None


class KeyOffsets:
    """The last offset of each key. Keys are stored as digests, which have one size and are too long for collisions."""

    def __init__(self, max_keys: int, *, secret: bytes | None = None) -> None:
        secret = urandom(_SECRET_SIZE) if secret is None else secret
        if len(secret) != _SECRET_SIZE:
            raise ValueError("the secret must have 16 bytes")
        self._max_keys = max_keys
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) >= self._max_keys

    def note(self, buffer: Buffer, at: int = 0, *, max_bytes: int = MAX_DECOMPRESSED) -> None:
        """Note the keys of the batch at `at`, whose checksum is already verified."""
        for record in _open(buffer, at, False, max_bytes)[2]:
            if record.key is not None:
                self._offsets[self.digest(record.key)] = record.offset

    def is_replaced(self, key: bytes, offset: int) -> bool:
        """Return whether the key was written again after `offset`."""
        return self._offsets.get(self.digest(key), -1) > offset

    def sift(
        self,
        buffer: Buffer,
        at: int = 0,
        *,
        start_offset: int,
        drop_tombstones: bool,
        horizon: int | None = None,
        max_bytes: int = MAX_DECOMPRESSED,
    ) -> Sifted:
        """Remove from the batch at `at` the records that were replaced, that lie before `start_offset` or have no key,
        and, if asked, tombstones. If tombstones remain and there is a `horizon`, write times relative to it.

        `records` is None if nothing has to be written, because all records remain unchanged or none remains.
        """
        header, view, records = _open(buffer, at, False, max_bytes)

        def stays(record: Record) -> bool:
            if record.key is None or record.offset < start_offset or self.is_replaced(record.key, record.offset):
                return False
            return not (drop_tombstones and record.value is None)

        kept = [stays(record) for record in records]
        staying = [record for record, stay in zip(records, kept, strict=True) if stay]
        tombstones = any(record.value is None for record in staying)
        latest = max((record.timestamp for record in staying), default=MIN_INT64)
        if not tombstones:
            horizon = None
        if not staying or (horizon is None and len(staying) == len(records)):
            return Sifted(len(staying), tombstones, latest, None)
        parts = [part for part, stay in zip(split_records(view, header.count), kept, strict=True) if stay]
        if horizon is not None:
            parts = [shift_time(part, header.base_timestamp - horizon) for part in parts]
        return Sifted(len(staying), tombstones, latest, b"".join(parts))

    def digest(self, key: bytes) -> bytes:
        """Return the digest of a key."""
        return blake2b(key, digest_size=_DIGEST_SIZE, key=self._secret).digest()


def split_records(payload: memoryview, count: int) -> list[memoryview]:
    """Return the bytes of each record; they are already validated."""
    cursor = Cursor(payload)
    parts = []
    for _ in range(count):
        begin = cursor.at
        size = cursor.varint()
        cursor.at += size
        parts.append(payload[begin : cursor.at])
    return parts


def shift_time(record: memoryview, shift: int) -> memoryview:
    """Return the record with `shift` added to its timestamp delta, in 64 bits as readers add it."""
    cursor = Cursor(record)
    cursor.varint()
    attributes = cursor.take(1)
    delta = varint((cursor.varint(64) + shift + _HALF) % (2 * _HALF) - _HALF)
    rest = record[cursor.at :]
    return memoryview(varint(len(attributes) + len(delta) + len(rest)) + attributes + delta + bytes(rest))
