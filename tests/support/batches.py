"""Record batches (format v2) written out by hand, for tests that need one with a chosen flaw.

Deliberately not the kernel's encoder: what the server is tested with should not come from the code under test, and
the kernel cannot be asked for a wrong count or a wrong checksum.

    record => length VARINT, attributes INT8, timestamp_delta VARLONG, offset_delta VARINT,
              key_length VARINT, key, value_length VARINT, value, header_count VARINT (0 here)

The header's layout stands in `fencepost.kernel.header`.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

GZIP: Final = 1
ZSTD: Final = 4
CONTROL: Final = 0x20
NOW: Final = (int(time.time()) - 3600) * 1000
"""The time of batches whose time does not matter: an hour ago. A fixed one would not do: a server may delete records
older than its retention at any moment, and with them a test's."""

_UNDER_CHECKSUM: Final = Struct(">hiqqqhii")
_IN_FRONT: Final = Struct(">qiibI")
_CRC_AT: Final = 17


def varint(number: int) -> bytes:
    """Zigzag, then seven bits a byte, lowest first."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(value: bytes | None, key: bytes | None = None, *, offset_delta: int = 0, timestamp_delta: int = 0) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + _nullable(key) + _nullable(value) + varint(0)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes],
    *,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamps: Sequence[int] | None = None,
    attributes: int = 0,
    count: int | None = None,
    last_offset_delta: int | None = None,
    magic: int = 2,
    crc: int | None = None,
    base_offset: int = 0,
    records: bytes | None = None,
) -> bytes:
    """One batch; what is not given is what a well-behaved producer would write."""
    times = list(timestamps) if timestamps is not None else [NOW] * len(values)
    first = times[0] if times else NOW
    if records is None:
        records = b"".join(
            record(value, offset_delta=delta, timestamp_delta=moment - first)
            for delta, (value, moment) in enumerate(zip(values, times, strict=True))
        )
        if attributes & 0x07 == GZIP:
            records = gzip.compress(records)
    checked = (
        _UNDER_CHECKSUM.pack(
            attributes,
            len(values) - 1 if last_offset_delta is None else last_offset_delta,
            first,
            max(times, default=first),
            pid,
            epoch,
            sequence,
            len(values) if count is None else count,
        )
        + records
    )
    length = len(checked) + _IN_FRONT.size - 12  # what follows base offset and length
    return (
        _IN_FRONT.pack(
            base_offset,
            length,
            -1,
            magic,
            crc32c(checked) if crc is None else crc,
        )
        + checked
    )


def with_wrong_checksum(whole: bytes) -> bytes:
    """The same batch with one bit of its checksum turned over."""
    return whole[:_CRC_AT] + bytes([whole[_CRC_AT] ^ 1]) + whole[_CRC_AT + 1 :]
