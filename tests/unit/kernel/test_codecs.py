"""Compression: the formats that other clients read and write, and limits that hold before memory is taken."""

from __future__ import annotations

import gzip
import random
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import CorruptBatch, UnsupportedFormat
from fencepost.kernel import unpack as native_unpack
from fencepost.kernel.codecs import CODECS, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress, most_blocks
from fencepost.kernel.header import Buffer

pytestmark = pytest.mark.unit

LIMIT = 1 << 22
REAL_CODECS = [GZIP, SNAPPY, LZ4, ZSTD]


def pieces(size: int, seed: int = 1) -> bytes:
    """Bytes that compress, but not to nothing."""
    chance = random.Random(seed)
    words = [chance.randbytes(chance.randrange(1, 30)) for _ in range(50)]
    out = bytearray()
    while len(out) < size:
        out += chance.choice(words)
    return bytes(out[:size])


def test_codecs_have_kafkas_names_and_numbers() -> None:
    assert CODECS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@given(data=st.binary(max_size=2000), codec=st.sampled_from(list(CODECS.values())))
def test_what_was_compressed_comes_back(data: bytes, codec: int) -> None:
    assert bytes(decompress(codec, bytes(compress(codec, data)), len(data))) == data


@pytest.mark.parametrize("codec", REAL_CODECS)
@pytest.mark.parametrize(
    "size", [0, 1, 32 << 10, (32 << 10) + 1, (64 << 10) + 1, (256 << 10) + 1, 1 << 20, (4 << 20) + 1]
)
def test_sizes_around_the_blocks_of_a_format_come_back(codec: int, size: int) -> None:
    data = pieces(size)
    packed = compress(codec, data)
    assert size < 100 or len(packed) < size
    assert decompress(codec, packed, size) == data


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_bytes_that_do_not_compress_come_back(codec: int) -> None:
    data = random.Random(2).randbytes(200_000)
    packed = compress(codec, data)
    assert len(packed) < len(data) + 1000
    assert decompress(codec, packed, len(data)) == data


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 9), (ZSTD, 1, 15)])
def test_a_higher_level_packs_tighter(codec: int, low: int, high: int) -> None:
    data = pieces(100_000)
    assert len(compress(codec, data, high)) < len(compress(codec, data, low))
    assert compress(codec, memoryview(data), high) == compress(codec, bytearray(data), high)
    assert decompress(codec, compress(codec, data, high), len(data)) == data


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_a_codec_that_does_not_exist_is_unsupported(codec: int) -> None:
    with pytest.raises(UnsupportedFormat):
        compress(codec, b"data")
    with pytest.raises(UnsupportedFormat):
        decompress(codec, b"data", LIMIT)


# --- limits ---


def bomb(codec: int, size: int) -> bytes:
    """Zeros, packed as hard as the format allows, without ever having all of them in memory."""
    if codec == GZIP:
        stream = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(stream.compress(bytes(1 << 20)) for _ in range(size >> 20)) + stream.flush()
    if codec == ZSTD:
        one = bytes(cramjam.zstd.compress(bytes(1 << 20)))
        return one * (size >> 20)
    if codec == LZ4:
        whole = bytes(compress(LZ4, bytes(4 << 20)))
        return whole[:7] + whole[7:-4] * (size >> 22) + bytes(4)
    whole = bytes(compress(SNAPPY, bytes(1 << 20)))
    return whole[:16] + whole[16:] * (size >> 20)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_zip_bomb_is_refused_without_being_inflated(codec: int) -> None:
    packed = bomb(codec, 1 << 28)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="allowed"):
            decompress(codec, packed, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * LIMIT


@pytest.mark.parametrize("codec", list(CODECS.values()))
def test_the_limit_is_exact(codec: int) -> None:
    data = pieces(70_000)
    packed = compress(codec, data)
    assert decompress(codec, packed, 70_000) == data
    for limit in (69_999, 1, 0):
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, limit)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        (SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00"),
        (SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00\x00\x06\xff\xff\xff\x01\x00\x00"),
        (SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + b"\x7f\xff\xff\xff"),
        (SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + b"\xff\xff\xff\xff"),
        (SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00\x00\x00"),
        (SNAPPY, b"\x82SNAPPY\x00" + bytes(8) + b"\x00\x00"),
        (LZ4, b"\x04\x22\x4d\x18\x60\x70\x73" + b"\xff\xff\xff\x7f"),
        (LZ4, b"\x04\x22\x4d\x18\x60\x70\x73" + b"\x00\x00\x00"),
        (LZ4, b"\x04\x22\x4d\x18\x60\x00\x73" + bytes(4)),
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x83" + b"\x01\x00\x00\x80x" + bytes(4)),
        (LZ4, b"\x04\x22\x4d"),
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x01\x00\x01\x80" + bytes(65_537) + bytes(4)),
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x05\x00\x00\x80abc"),
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x03\x00\x00\x00\xf0ab" + bytes(4)),
        (LZ4, b"\x04\x22\x4d\x18\x60\x40\x82" + b"\x03\x00\x00\x80abc"),
        (ZSTD, b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\xff\x01\x00\x00"),
        (ZSTD, b"\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff"),
        (ZSTD, b"\x28\xb5\x2f\xfd\x00\x58\xfc\xff\xff"),
        (ZSTD, b"\x50\x2a\x4d\x18\xff\xff\xff\xff"),
        (ZSTD, b"\x28\xb5\x2f\xfd"),
        (GZIP, b"\x1f\x8b\x08"),
        (GZIP, b"\x1f\x8b\x08" + b"\xff" * 40),
    ],
)
def test_a_header_that_lies_is_corrupt_and_costs_no_memory(codec: int, packed: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            decompress(codec, packed, 1 << 40)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_damage_is_corrupt_and_nothing_else(codec: int) -> None:
    data = pieces(5_000)
    whole = bytes(compress(codec, data))
    chance = random.Random(3)
    for _ in range(2_000):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 3))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            decompress(codec, damaged, LIMIT)
        except CorruptBatch:
            continue


NOTHING = {
    GZIP: (b"", gzip.compress(b""), b""),
    SNAPPY: (b"\x82SNAPPY\x00" + bytes(8), b"\x00\x00\x00\x01\x00", b""),
    LZ4: (b"\x04\x22\x4d\x18\x60\x40\x82", b"\x00\x00\x00\x80", bytes(4)),
    ZSTD: (b"\x28\xb5\x2f\xfd\x00\x58", bytes(3), b"\x01\x00\x00"),
}
"""What comes first, a part that becomes nothing, and what comes last."""


@pytest.mark.parametrize("unpack", [decompress, native_unpack], ids=["twin", "native"])
@pytest.mark.parametrize("codec", REAL_CODECS)
def test_blocks_that_become_nothing_are_bounded(codec: int, unpack: Callable[[int, bytes, int], Buffer]) -> None:
    first, part, last = NOTHING[codec]
    most = most_blocks(LIMIT)
    assert len(memoryview(unpack(codec, first + part * (most - 2) + last, LIMIT))) == 0
    with pytest.raises(CorruptBatch, match="blocks allowed"):
        unpack(codec, first + part * (most + 2) + last, LIMIT)


def test_skippable_zstd_frames_are_bounded_too() -> None:
    with pytest.raises(CorruptBatch, match="blocks allowed"):
        decompress(ZSTD, (b"\x50\x2a\x4d\x18" + bytes(4)) * (most_blocks(LIMIT) + 1), LIMIT)


# --- the formats ---


def test_snappy_is_written_in_xerials_framing() -> None:
    packed = bytes(compress(SNAPPY, b"x" * 40_000))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(packed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == b"x" * 32_768


def test_raw_snappy_is_read_too() -> None:
    data = pieces(100_000)
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(SNAPPY, raw, len(data)) == data
    with pytest.raises(CorruptBatch):
        decompress(SNAPPY, raw, len(data) - 1)


def xxhash32(data: bytes) -> int:
    """xxHash32 of fewer than four bytes, seed 0, from its specification."""
    mask = 2**32 - 1
    hashed = 374761393 + len(data)
    for byte in data:
        hashed = hashed + byte * 374761393 & mask
        hashed = (hashed << 11 | hashed >> 21) * 2654435761 & mask
    hashed = (hashed ^ hashed >> 15) * 2246822519 & mask
    hashed = (hashed ^ hashed >> 13) * 3266489917 & mask
    return hashed ^ hashed >> 16


@pytest.mark.parametrize("size", [10, 65_536, 65_537, 300_000])
def test_an_lz4_frame_has_independent_blocks_and_the_right_header_checksum(size: int) -> None:
    """Java's reader refuses linked blocks and a wrong checksum."""
    packed = bytes(compress(LZ4, pieces(size)))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] == 0b0110_0000
    assert packed[5] == 0x40
    assert packed[6] == xxhash32(packed[4:6]) >> 8 & 0xFF
    assert packed[-4:] == bytes(4)


def test_a_slow_lz4_frame_has_independent_blocks_too() -> None:
    packed = bytes(compress(LZ4, pieces(300_000), 9))
    assert packed[4] & 0b1110_0000 == 0b0110_0000
    assert packed[6] == xxhash32(packed[4:6]) >> 8 & 0xFF


def test_lz4_frames_of_other_writers_are_read() -> None:
    """Linked blocks, checksums of content, several frames one behind the other."""
    data = pieces(300_000)
    linked = bytes(cramjam.lz4.compress(data))
    assert not linked[4] & 0x20
    assert decompress(LZ4, linked, len(data)) == data
    stream = cramjam.lz4.Compressor(content_checksum=True, block_linked=False)
    stream.compress(data)
    checked = bytes(stream.finish())
    assert decompress(LZ4, checked, len(data)) == data
    assert decompress(LZ4, bytes(compress(LZ4, b"one")) + bytes(compress(LZ4, b"two")), 10) == b"onetwo"
    assert decompress(LZ4, bytes(compress(LZ4, b"one")) + linked, 3 + len(data)) == b"one" + data


def test_zstd_frames_without_a_content_size_are_read() -> None:
    """Java streams, so it does not know the size when it writes the header."""
    data = pieces(300_000)
    stream = cramjam.zstd.Compressor()
    stream.compress(data)
    streamed = bytes(stream.finish())
    assert streamed[4] >> 6 == 0 and not streamed[4] & 0x20
    assert decompress(ZSTD, streamed, len(data)) == data
    with pytest.raises(CorruptBatch):
        decompress(ZSTD, streamed, len(data) - 1)


def test_several_zstd_frames_and_skippable_ones_are_read() -> None:
    one, two = bytes(compress(ZSTD, b"one")), bytes(compress(ZSTD, b"two"))
    skippable = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"
    assert decompress(ZSTD, one + skippable + two, 10) == b"onetwo"


def test_several_gzip_members_are_read() -> None:
    assert decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 6) == b"onetwo"
    with pytest.raises(CorruptBatch):
        decompress(GZIP, gzip.compress(b"one") + gzip.compress(b"two"), 5)


def test_gzip_members_longer_than_a_step_are_read_wherever_they_end() -> None:
    chance = random.Random(7)
    members = [chance.randbytes(size) for size in (0, 100_000, 1, 16_383, 0, 40_000)]
    data, plain = b"".join(map(gzip.compress, members)), b"".join(members)
    assert decompress(GZIP, data, len(plain)) == plain
    with pytest.raises(CorruptBatch, match="larger than"):
        decompress(GZIP, data, len(plain) - 1)
    for cut in (1, 8, 30_000):
        with pytest.raises(CorruptBatch, match="truncated"):
            decompress(GZIP, data[:-cut], len(plain))


def test_the_work_for_many_gzip_members_grows_with_their_number_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib hands back a copy of all that it was given behind a member's end."""
    copied = 0
    real = zlib.decompressobj

    class Counting:
        def __init__(self, window: int) -> None:
            self._stream = real(window)

        def decompress(self, data: bytes, limit: int) -> bytes:
            nonlocal copied
            part = self._stream.decompress(data, limit)
            copied += len(self._stream.unused_data)
            return part

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

    monkeypatch.setattr(zlib, "decompressobj", Counting)

    def cost(members: int) -> int:
        nonlocal copied
        copied = 0
        assert decompress(GZIP, gzip.compress(b"") * members, members << 13) == b""
        return copied

    assert cost(20_000) < 3 * cost(10_000)


def test_none_is_passed_through_uncopied() -> None:
    data = bytearray(b"data")
    assert compress(NONE, data) is data
    assert decompress(NONE, data, 4) is data


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_compression_lets_other_threads_run(codec: int) -> None:
    """With switches put off for ever, this thread gets its turn only if the codec itself gives the GIL up."""
    data = pieces(2 << 20)
    begun, ran = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        begun.set()
        for _ in range(20):
            compress(codec, data, 1)
            if ran.is_set():
                break
        seen.append(ran.is_set())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        worker = threading.Thread(target=work)
        worker.start()
        begun.wait()
        ran.set()
        worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert seen == [True]
