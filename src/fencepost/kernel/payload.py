"""Opening a batch: from its bytes to its uncompressed records, for both implementations."""

from __future__ import annotations

from collections.abc import Callable

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import NONE, decompress
from fencepost.kernel.header import HEADER_SIZE, BatchHeader, Buffer, check_batch, read_header
from fencepost.kernel.record import MIN_RECORD_SIZE

_MAX_OFFSET = 2**63 - 1


def open_batch(
    buffer: Buffer, at: int, check: bool, max_bytes: int, unpack: Callable[[int, Buffer, int], Buffer] = decompress
) -> tuple[BatchHeader, Buffer]:
    """Return the header of the batch at `at` and its records, decompressed by `unpack`. Verify all that needs no
    decoded record: size, checksum (if `check`), offsets, and that the records can fit into the bytes.
    """
    header, payload = open_packed(buffer, at, check)
    return header, unpacked(header, payload, max_bytes, unpack)


def open_packed(buffer: Buffer, at: int, check: bool) -> tuple[BatchHeader, memoryview]:
    """Return the header and the records as they are, after the same checks of the header."""
    header = check_batch(buffer, at) if check else read_header(buffer, at)
    if header.size > len(buffer) - at:
        raise CorruptBatch(f"batch of {header.size} bytes is truncated after {len(buffer) - at}")
    if header.count < 0 or header.last_offset_delta < header.count - 1:
        raise CorruptBatch(f"{header.count} records cannot have {header.last_offset_delta + 1} offsets")
    if header.base_offset > _MAX_OFFSET - max(header.last_offset_delta, 0):
        raise CorruptBatch("the offsets do not fit into 64 bits")
    return header, memoryview(buffer)[at + HEADER_SIZE : at + header.size]


def unpacked(
    header: BatchHeader, payload: Buffer, max_bytes: int, unpack: Callable[[int, Buffer, int], Buffer] = decompress
) -> Buffer:
    """Return the decompressed records, if they can fit into the bytes."""
    # A batch that compaction has emptied is only a header, whatever its codec.
    if header.codec != NONE and len(payload):
        payload = unpack(header.codec, payload, max_bytes)
    if header.count > len(payload) // MIN_RECORD_SIZE:
        raise CorruptBatch(f"{header.count} records cannot fit into {len(payload)} bytes")
    return payload
