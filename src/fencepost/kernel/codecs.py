"""Compression of a batch's records, in the formats that Kafka's clients write and read; opening a batch.

    gzip    one or more gzip members
    snappy  written in the xerial framing (Java's), read in it and raw (librdkafka's)
    lz4     an LZ4 frame with independent blocks and a correct header checksum: Java's reader rejects others
    zstd    one or more zstd frames

Decompression is bounded before it starts. The headers of each format limit the decompressed size of its blocks; the
output buffer has the smaller of that and the caller's limit, and the decoder stops at its end. Data that does not fit
is a zip bomb or damaged, and raises `CorruptBatch`. So does data in very many blocks, frames or members: each costs
time, even if it becomes nothing, so the caller's limit bounds their number too (`most_blocks`).

The libraries release the GIL while they work. `open_batch` goes from a batch's bytes to its uncompressed records, for
both implementations of the kernel.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, NoReturn

import cramjam

from fencepost.errors import CorruptBatch, UnsupportedFormat
from fencepost.kernel.header import HEADER_SIZE, BatchHeader, Buffer, check_batch, read_header
from fencepost.kernel.record import MIN_RECORD_SIZE

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

CODECS: Final[dict[str, int]] = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""Kafka's `compression.type` by name → the number in a batch's attributes."""

_GZIP_WINDOW: Final = 31  # the largest deflate window, in gzip's wrapper
_GZIP_LEVEL: Final = 6
_GZIP_STEP: Final = 16 << 10
_ZSTD_LEVEL: Final = 3
_LZ4_FIRST_SLOW_LEVEL: Final = 3  # below it LZ4 has one fast mode

_BIG_ENDIAN_INT: Final = Struct(">i")
_LITTLE_ENDIAN_INT: Final = Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Compress `data` in the codec's format. `level` has the codec's own meaning; snappy ignores it."""
    if codec == NONE:
        return data
    try:
        compressor = _COMPRESSORS[codec]
    except KeyError:
        raise UnsupportedFormat(f"unknown codec {codec}") from None
    return compressor(data, level)


def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress `data`; raise `CorruptBatch` if it becomes more than `max_bytes`."""
    if codec == NONE:
        if len(data) > max_bytes:
            _refuse_bomb("none", max_bytes)
        return data
    try:
        decompressor = _DECOMPRESSORS[codec]
    except KeyError:
        raise UnsupportedFormat(f"unknown codec {codec}") from None
    return decompressor(memoryview(data), max_bytes)


def _refuse_bomb(name: str, max_bytes: int) -> NoReturn:
    raise CorruptBatch(f"{name}: the records are larger than the {max_bytes} bytes allowed")


_BLOCKS_ALWAYS_ALLOWED: Final = 64
_MIN_BYTES_PER_BLOCK: Final = 8 << 10


def most_blocks(max_bytes: int) -> int:
    """Return how many blocks data of up to `max_bytes` may have. Writers make blocks of 32 to 128 KiB."""
    return _BLOCKS_ALWAYS_ALLOWED + max_bytes // _MIN_BYTES_PER_BLOCK


def _refuse_blocks(name: str, max_bytes: int) -> NoReturn:
    raise CorruptBatch(f"{name}: more than the {most_blocks(max_bytes)} blocks allowed in {max_bytes} bytes")


# --- gzip ---


def _gzip(data: Buffer, level: int | None) -> bytes:
    stream = zlib.compressobj(_GZIP_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return stream.compress(data) + stream.flush()


def _gunzip(data: memoryview, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = max_bytes
    stream = zlib.decompressobj(_GZIP_WINDOW)
    at, step, ended, members = 0, len(data), True, 0
    most = most_blocks(max_bytes)
    while at < len(data):
        if members > most:
            _refuse_blocks("gzip", max_bytes)
        piece = data[at : at + step]
        try:
            # One byte more than the room tells "exactly full" from "too much"; 0 would mean "no limit" to zlib.
            part = stream.decompress(piece, room + 1)
        except zlib.error as error:
            raise CorruptBatch(f"gzip: {error}") from None
        if len(part) > room:
            _refuse_bomb("gzip", max_bytes)
        parts.append(part)
        room -= len(part)
        at += len(piece) - len(stream.unused_data)
        ended = stream.eof
        if ended:
            members += 1
            # Usually that was all. If not, zlib has copied the rest, and would copy it again for each member: so
            # continue in small steps.
            stream, step = zlib.decompressobj(_GZIP_WINDOW), _GZIP_STEP
    if not ended:
        raise CorruptBatch("gzip: the records are truncated")
    return parts[0] if len(parts) == 1 else b"".join(parts)


# --- snappy ---
#
# xerial framing:  82 "SNAPPY" 00 | version int32 (1) | oldest reader's version int32 (1) | blocks
# block:           length int32 | that many bytes of raw snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + _BIG_ENDIAN_INT.pack(1) + _BIG_ENDIAN_INT.pack(1)
_XERIAL_BLOCK: Final = 32 << 10


def _snap(data: Buffer, _level: int | None) -> bytes:
    view = memoryview(data)
    parts: list[Buffer] = [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK]))
        parts += (_BIG_ENDIAN_INT.pack(len(block)), block)
    return b"".join(parts)


def _unsnap(data: memoryview, max_bytes: int) -> Buffer:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnap_blocks([data], max_bytes)
    blocks: list[memoryview] = []
    most = most_blocks(max_bytes)
    at = len(_XERIAL_HEADER)
    while at < len(data):
        if len(blocks) >= most:
            _refuse_blocks("snappy", max_bytes)
        if len(data) - at < _BIG_ENDIAN_INT.size:
            raise CorruptBatch("snappy: the length of a block is truncated")
        (size,) = _BIG_ENDIAN_INT.unpack_from(data, at)
        at += _BIG_ENDIAN_INT.size
        if not 0 < size <= len(data) - at:
            raise CorruptBatch(f"snappy: a block of {size} bytes, but only {len(data) - at} are left")
        blocks.append(data[at : at + size])
        at += size
    return _unsnap_blocks(blocks, max_bytes)


def _unsnap_blocks(blocks: list[memoryview], max_bytes: int) -> bytearray:
    try:
        sizes = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
        if sum(sizes) > max_bytes:
            _refuse_bomb("snappy", max_bytes)
        if any(size > _SNAPPY_RATIO * len(block) for size, block in zip(sizes, blocks, strict=True)):
            raise CorruptBatch("snappy: a block claims a size that the format cannot produce")
        out = bytearray(sum(sizes))
        at = 0
        with memoryview(out) as view:
            for size, block in zip(sizes, blocks, strict=True):
                if size and cramjam.snappy.decompress_raw_into(block, view[at : at + size]) != size:
                    raise CorruptBatch("snappy: a block is shorter than it claims")
                at += size
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy: {error}") from None
    return out


_SNAPPY_RATIO: Final = 64  # a copy of up to 64 bytes takes at least two


# --- lz4 ---
#
# frame:  magic 4 | FLG 1 | BD 1 | content size 8, if FLG says so | header checksum 1 | blocks | 0 int32
#         | content checksum 4, if FLG says so
# FLG:    bits 7-6 version (01), 5 blocks independent, 4 block checksums, 3 content size, 2 content checksum,
#         0 dictionary
# BD:     bits 6-4 largest block: 4 = 64 KiB, 5 = 256 KiB, 6 = 1 MiB, 7 = 4 MiB
# block:  size int32, top bit = stored uncompressed | data | checksum 4, if FLG says so      (integers little endian)
#
# We write independent blocks of 64 KiB, without checksums of blocks or content, because the batch has its own. The
# header checksum is the second byte of xxHash32 over FLG and BD, which are constant.

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK: Final = 64 << 10
_LZ4_BLOCK_SIZES: Final = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_END: Final = bytes(4)
_LZ4_STORED: Final = 0x80000000
_LZ4_RATIO: Final = 255  # the most bytes that a byte of LZ4 can become


def _lz4(data: Buffer, level: int | None) -> bytes:
    if level is not None and level >= _LZ4_FIRST_SLOW_LEVEL:
        return _slow_lz4(data, level)
    view = memoryview(data)
    parts: list[Buffer] = [_LZ4_HEADER]
    for at in range(0, len(view), _LZ4_BLOCK):
        plain = view[at : at + _LZ4_BLOCK]
        block = memoryview(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (_LITTLE_ENDIAN_INT.pack(len(block)), block)
        else:
            parts += (_LITTLE_ENDIAN_INT.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _slow_lz4(data: Buffer, level: int) -> bytes:
    # The library's frame API has all levels, but at the default level it takes ten times as long as its block API.
    stream = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    stream.compress(bytes(data))  # it accepts no other buffers
    return bytes(stream.finish())


class _Lz4Block(NamedTuple):
    data: memoryview
    stored: bool
    bound: int
    """The largest decompressed size."""


def _unlz4(data: memoryview, max_bytes: int) -> bytearray:
    blocks, plain = _lz4_blocks(data, max_bytes)
    bound = sum(block.bound for block in blocks)
    if not plain:
        return _inflate("lz4", cramjam.lz4.decompress_into, data, bound, max_bytes)
    # We, Java and librdkafka write the same frame header. The library decompresses their blocks one by one five times
    # as fast as it reads frames.
    out = bytearray(min(bound, max_bytes))
    filled = 0
    with memoryview(out) as view:
        for block in blocks:
            filled += _unlz4_block(block, view[filled : filled + block.bound], max_bytes)
    del out[filled:]
    return out


def _unlz4_block(block: _Lz4Block, room: memoryview, max_bytes: int) -> int:
    if block.stored:
        if len(room) < len(block.data):
            _refuse_bomb("lz4", max_bytes)
        room[:] = block.data
        return len(room)
    try:
        return cramjam.lz4.decompress_block_into(block.data, room, len(room))
    except cramjam.DecompressionError:
        raise CorruptBatch(f"lz4: the records are damaged, or larger than the {max_bytes} bytes allowed") from None


def _lz4_blocks(data: memoryview, max_bytes: int) -> tuple[list[_Lz4Block], bool]:
    """Return the blocks of all frames in `data`, and whether every frame has the header that we write."""
    blocks: list[_Lz4Block] = []
    most = most_blocks(max_bytes)
    plain = True
    at = seen = 0
    while at < len(data):
        header = bytes(data[at : at + len(_LZ4_HEADER)])
        if len(header) < len(_LZ4_HEADER) or not header.startswith(_LZ4_MAGIC):
            raise CorruptBatch("lz4: not a frame")
        plain = plain and header == _LZ4_HEADER
        flags, largest = header[4], _LZ4_BLOCK_SIZES.get(header[5] >> 4)
        if largest is None:
            raise CorruptBatch("lz4: invalid block size")
        at += len(header) + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while True:
            if len(data) - at < 4:
                raise CorruptBatch("lz4: a block is truncated")
            (size,) = _LITTLE_ENDIAN_INT.unpack_from(data, at)
            at += 4
            seen += 1  # the end mark too: frames without blocks also take time
            if seen > most:
                _refuse_blocks("lz4", max_bytes)
            if not size:
                break
            stored, size = bool(size & _LZ4_STORED), size & ~_LZ4_STORED
            if size > min(largest, len(data) - at):
                raise CorruptBatch(f"lz4: a block of {size} bytes, but only {len(data) - at} are left")
            bound = size if stored else min(largest, size * _LZ4_RATIO)
            blocks.append(_Lz4Block(data[at : at + size], stored, bound))
            at += size + (4 if flags & 0x10 else 0)
        at += 4 if flags & 0x04 else 0
    if at != len(data):
        raise CorruptBatch("lz4: a frame is truncated")
    return blocks, plain


# --- zstd ---
#
# frame:  magic 4 | descriptor 1 | window 0-1 | dictionary id 0-4 | content size 0-8 | blocks
#         | checksum 4, if the descriptor says so
# descriptor: bits 7-6 content size field, 5 single segment (no window byte), 2 checksum, 1-0 dictionary id field
# block:  3 bytes little endian: bit 0 last, 1-2 type (0 raw, 1 one byte repeated, 2 compressed), 3-23 size
# A block becomes at most 128 KiB. A skippable frame (magic 184D2A50 to 5F, size int32) becomes nothing.

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_SKIPPABLE: Final = 0x184D2A5
_ZSTD_BLOCK: Final = 128 << 10
_ZSTD_REPEATED: Final = 1
_ZSTD_COMPRESSED: Final = 2


def _zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def _unzstd(data: memoryview, max_bytes: int) -> bytearray:
    return _inflate("zstd", cramjam.zstd.decompress_into, data, _zstd_bound(data, max_bytes), max_bytes)


def _zstd_bound(data: memoryview, max_bytes: int) -> int:
    """Return the largest decompressed size of the frames in `data`, by their block headers."""
    bound = at = seen = 0
    most = most_blocks(max_bytes)
    while at < len(data):
        seen += 1
        if seen > most:
            _refuse_blocks("zstd", max_bytes)
        if len(data) - at < 8:
            raise CorruptBatch("zstd: a frame is truncated")
        (magic,) = _LITTLE_ENDIAN_INT.unpack_from(data, at)
        if magic >> 4 == _ZSTD_SKIPPABLE:
            at += 8 + _LITTLE_ENDIAN_INT.unpack_from(data, at + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise CorruptBatch("zstd: not a frame")
        descriptor = data[at + 4]
        single_segment = descriptor >> 5 & 1
        at += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + (single_segment, 2, 4, 8)[descriptor >> 6]
        last = False
        while not last:
            seen += 1
            if seen > most:
                _refuse_blocks("zstd", max_bytes)
            if len(data) - at < 3:
                raise CorruptBatch("zstd: a block is truncated")
            block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            at += 3 + (1 if kind == _ZSTD_REPEATED else size)
            bound += _ZSTD_BLOCK if kind == _ZSTD_COMPRESSED else min(size, _ZSTD_BLOCK)
        at += 4 if descriptor >> 2 & 1 else 0
    if at != len(data):
        raise CorruptBatch("zstd: a frame is truncated")
    return bound


def _inflate(
    name: str, decompress_into: Callable[[Buffer, Buffer], int], data: memoryview, bound: int, max_bytes: int
) -> bytearray:
    out = bytearray(max(1, min(bound, max_bytes)))  # the decoders do not accept an empty buffer
    try:
        del out[decompress_into(data, out) :]
    except cramjam.DecompressionError as error:
        if bound > max_bytes:
            said = f"{name}: the records are damaged, or larger than the {max_bytes} bytes allowed"
            raise CorruptBatch(said) from None
        raise CorruptBatch(f"{name}: {error}") from None
    if len(out) > max_bytes:
        _refuse_bomb(name, max_bytes)
    return out


_COMPRESSORS: Final[dict[int, Callable[[Buffer, int | None], Buffer]]] = {
    GZIP: _gzip,
    SNAPPY: _snap,
    LZ4: _lz4,
    ZSTD: _zstd,
}
_DECOMPRESSORS: Final[dict[int, Callable[[memoryview, int], Buffer]]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnap,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}


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
