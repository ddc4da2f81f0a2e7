"""Encoding and decoding of whole batches: what goes in comes out, and the bytes are Kafka's."""

from __future__ import annotations

import random
import secrets
import struct
from typing import NamedTuple

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import CorruptBatch
from fencepost.kernel import (
    CODECS,
    HEADER_SIZE,
    Record,
    _batch,
    check_batch,
    compress,
    read_header,
    stamp_append_time,
    stamp_producer,
)
from fencepost.kernel.record import Row
from tests.unit.kernel.implementations import (
    COMPILED,
    MAX_INT64,
    MIN_INT64,
    NOW,
    TWIN,
    Kernel,
    as_bytes,
    as_headers,
    batches_of_rows,
)

pytestmark = pytest.mark.unit


def expected(rows: list[Row], base_offset: int = 0) -> list[Record]:
    return [
        Record(base_offset + i, timestamp, as_bytes(key), as_bytes(value), as_headers(headers))
        for i, (key, value, timestamp, headers) in enumerate(rows)
    ]


def test_a_batch_has_exactly_these_bytes(kernel: Kernel) -> None:
    """Written out by hand from Kafka's description of the format."""
    records = (
        # length 18 → 36 | attributes | Δt 0 | Δo 0 | 3 → 6 "key" | 5 → 10 "value" | 1 → 2 header: 1 → 2 "h", 1 → 2 "x"
        b"\x24\x00\x00\x00\x06key\x0avalue\x02\x02h\x02x"
        # length 6 → 12 | attributes | Δt 5 → 10 | Δo 1 → 2 | null → 1 | null → 1 | no headers
        b"\x0c\x00\x0a\x02\x01\x01\x00"
    )
    header = (
        b"\x00\x00\x00\x00\x00\x00\x00\x07"  # base offset
        + (49 + len(records)).to_bytes(4, "big")
        + b"\xff\xff\xff\xff"  # leader epoch
        b"\x02"  # magic
        b"CRC?"
        b"\x00\x10"  # transactional
        b"\x00\x00\x00\x01"  # last offset delta
        b"\x00\x00\x00\x00\x00\x00\x03\xe8"  # base timestamp
        b"\x00\x00\x00\x00\x00\x00\x03\xed"  # max timestamp
        b"\x00\x00\x00\x00\x00\x00\x00\x05"  # pid
        b"\x00\x03"  # epoch
        b"\x00\x00\x00\x09"  # base sequence
        b"\x00\x00\x00\x02"  # count
    )
    batch = kernel.encode_batch(
        [("key", b"value", 1000, [("h", b"x")]), (None, None, 1005, None)],
        pid=5,
        epoch=3,
        base_sequence=9,
        transactional=True,
        base_offset=7,
    )
    assert type(batch) is bytearray
    assert bytes(batch[:17]) + b"CRC?" + bytes(batch[21:]) == header + records
    check_batch(batch)


@given(rows=batches_of_rows, codec=st.sampled_from(list(CODECS.values())), base_offset=st.integers(0, 2**62))
def test_both_implementations_write_the_same_bytes_and_read_back_what_was_written(
    rows: list[Row], codec: int, base_offset: int
) -> None:
    stamp = {"pid": 2**40, "epoch": 7, "base_sequence": 2**31 - 1, "base_offset": base_offset}
    compiled, twin = (kernel.encode_batch(rows, codec=codec, **stamp) for kernel in (COMPILED, TWIN))
    if codec != CODECS["lz4"]:  # which the compiled kernel packs by itself, and otherwise than the library
        assert compiled == twin
    for kernel in (COMPILED, TWIN):
        for batch in (compiled, twin):
            records = kernel.decode_batch(batch)
            assert records == expected(rows, base_offset)
            assert all(type(record) is Record for record in records)


@given(rows=batches_of_rows)
def test_a_builder_counts_as_it_is_filled(rows: list[Row]) -> None:
    for kernel in (COMPILED, TWIN):
        builder = kernel.BatchBuilder(capacity=1)
        assert (builder.count, builder.size, builder.base_timestamp, builder.max_timestamp) == (0, 61, -1, -1)
        for number, row in enumerate(rows, 1):
            assert builder.append(*row) == builder.size == HEADER_SIZE + len(builder.records())
            assert len(builder) == builder.count == number
        assert builder.base_timestamp == rows[0][2]
        assert builder.max_timestamp == max(row[2] for row in rows)
        header = check_batch(builder.build())
        assert (header.base_timestamp, header.max_timestamp) == (builder.base_timestamp, builder.max_timestamp)
        assert (header.count, header.last_offset_delta) == (len(rows), len(rows) - 1)
        assert header.size == builder.size


def test_a_built_builder_can_be_built_again_filled_further_and_cleared(kernel: Kernel) -> None:
    builder = kernel.BatchBuilder()
    builder.append(None, b"a", NOW)
    assert builder.build() == builder.build()
    builder.append(None, b"b", NOW)
    assert [record.value for record in kernel.decode_batch(builder.build())] == [b"a", b"b"]
    builder.clear()
    assert (builder.count, builder.size, builder.base_timestamp, builder.max_timestamp) == (0, 61, -1, -1)
    builder.append(None, b"c", NOW + 1)
    assert kernel.decode_batch(builder.build()) == [Record(0, NOW + 1, None, b"c", ())]


def test_an_empty_batch_is_not_built(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match="at least one record"):
        kernel.BatchBuilder().build()


@pytest.mark.parametrize("thing", [bytearray(b"xyz"), memoryview(b"-xyz-")[1:4], "xyz"])
def test_anything_that_lends_bytes_may_be_a_key_or_value(kernel: Kernel, thing: object) -> None:
    batch = kernel.encode_batch([(thing, thing, NOW, [("h", thing)])])
    assert kernel.decode_batch(batch) == [Record(0, NOW, b"xyz", b"xyz", (("h", b"xyz"),))]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ((5, b"", NOW, None), TypeError),
        ((b"", 5.0, NOW, None), TypeError),
        ((b"", [1], NOW, None), TypeError),
        ((b"", "\ud800", NOW, None), UnicodeEncodeError),
        ((b"", memoryview(b"abcd")[::2], NOW, None), BufferError),
        ((b"", b"", "now", None), TypeError),
        ((b"", b"", 2**63, None), OverflowError),
        ((b"", b"", NOW, [(b"name", b"")]), TypeError),
        ((b"", b"", NOW, [(None, b"")]), TypeError),
        ((b"", b"", NOW, [("h", 5)]), TypeError),
        ((b"", b"", NOW, [("h", b"", b"")]), ValueError),
        ((b"", b"", NOW, [("h", b""), ("h",)]), ValueError),
        ((b"", b"", NOW, 5), TypeError),
    ],
)
def test_what_cannot_be_encoded_leaves_the_builder_as_it_was(
    kernel: Kernel, row: tuple[object, ...], error: type[Exception]
) -> None:
    builder = kernel.BatchBuilder()
    builder.append(b"k", b"v", NOW)
    before = builder.build()
    with pytest.raises(error):
        builder.append(*row)
    assert builder.build() == before
    builder.append(b"k2", b"v2", NOW)
    assert [record.key for record in kernel.decode_batch(builder.build())] == [b"k", b"k2"]


@pytest.mark.parametrize(
    "arguments", [{"pid": 2**63}, {"epoch": 2**15}, {"base_sequence": 2**31}, {"base_offset": 2**63}]
)
def test_numbers_that_do_not_fit_their_field_are_refused(kernel: Kernel, arguments: dict[str, int]) -> None:
    with pytest.raises((OverflowError, struct.error)):
        kernel.encode_batch([(b"k", b"v", NOW, None)], **arguments)


def test_timestamps_may_lie_before_the_first_and_as_far_apart_as_64_bits_allow(kernel: Kernel) -> None:
    times = [NOW, NOW - 5, -1, 0, MIN_INT64, MAX_INT64]
    batch = kernel.encode_batch([(None, b"", time, None) for time in times])
    assert [record.timestamp for record in kernel.decode_batch(batch)] == times


def test_log_append_time_is_the_time_of_every_record(kernel: Kernel) -> None:
    batch = kernel.encode_batch([(None, b"a", 1, None), (None, b"b", 2, None)])
    stamp_append_time(batch, read_header(batch), NOW)
    assert [record.timestamp for record in kernel.decode_batch(batch)] == [NOW, NOW]


def test_a_batch_is_found_in_the_middle_of_a_buffer(kernel: Kernel) -> None:
    first, second = (kernel.encode_batch([(None, value, NOW, None)]) for value in (b"a", b"b"))
    buffer = bytes(first + second + b"tail")
    assert kernel.decode_batch(buffer, len(first)) == kernel.decode_batch(second)
    assert kernel.decode_batch(memoryview(buffer), len(first)) == kernel.decode_batch(second)


def test_a_batch_that_compaction_has_thinned_out_keeps_its_offsets(kernel: Kernel) -> None:
    """Offsets have gaps, the first and the last may be gone, and a whole batch may be a bare header."""
    whole = kernel.encode_batch([(None, b"%d" % i, NOW, None) for i in range(5)], base_offset=100)
    records = [bytes(kernel.encode_batch([(None, b"%d" % i, NOW, None)])[61:]) for i in range(5)]
    kept = b"".join(record[:3] + bytes([i * 2]) + record[4:] for i, record in enumerate(records) if i in {1, 3})
    thin = bytearray(whole[:61] + kept)
    thin[8:12] = (len(thin) - 12).to_bytes(4, "big")
    thin[57:61] = (2).to_bytes(4, "big")
    assert [(r.offset, r.value) for r in kernel.decode_batch(thin, check=False)] == [(101, b"1"), (103, b"3")]
    bare = bytearray(whole[:61])
    bare[8:12] = (49).to_bytes(4, "big")
    bare[57:61] = bytes(4)
    assert kernel.decode_batch(bare, check=False) == []
    bare[22] = CODECS["zstd"]
    assert kernel.decode_batch(bare, check=False) == []


def test_the_checksum_is_checked_unless_the_caller_has_done_it(kernel: Kernel) -> None:
    batch = kernel.encode_batch([(None, b"value", NOW, None)])
    batch[-2] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        kernel.decode_batch(batch)
    assert kernel.decode_batch(batch, check=False)[0].value == b"valud"


def test_a_header_name_that_is_no_utf_8_is_shown_with_replacement_characters(kernel: Kernel) -> None:
    batch = kernel.encode_batch([(None, None, NOW, [("??", b"x")])])
    at = batch.index(b"??")
    batch[at : at + 2] = b"\xff\xfe"
    assert kernel.decode_batch(batch, check=False)[0].headers == (("\ufffd\ufffd", b"x"),)


def test_a_record_larger_than_any_hint_fits(kernel: Kernel) -> None:
    value = bytes(range(256)) * 40_000
    builder = kernel.BatchBuilder(capacity=10)
    builder.append(b"k", value, NOW)
    builder.append(None, None, NOW)
    assert [record.value for record in kernel.decode_batch(builder.build())] == [value, None]


def test_a_builder_is_left_alone_while_its_records_are_lent() -> None:
    """Compression runs without the GIL on the builder's own memory; an append from another thread must not move it."""
    builder = COMPILED.BatchBuilder()
    builder.append(None, b"a", NOW)
    with memoryview(builder) as lent:
        assert lent.readonly
        for change in (lambda: builder.append(None, b"b", NOW), builder.clear):
            with pytest.raises(BufferError):
                change()
    builder.append(None, b"b", NOW)
    assert builder.count == 2


def test_a_value_that_appends_while_it_is_read_does_not_tear_the_batch(kernel: Kernel) -> None:
    builder = kernel.BatchBuilder(capacity=1)

    def headers() -> object:
        yield "a", b"1"
        builder.append(None, b"inner" * 100, NOW)
        yield "b", b"2"

    builder.append(b"k", bytearray(b"outer"), NOW, headers())
    records = kernel.decode_batch(builder.build())
    assert [record.value for record in records] == [b"inner" * 100, b"outer"]
    assert records[1].headers == (("a", b"1"), ("b", b"2"))


# --- what the compiled kernel does by itself that the twin leaves to libraries ---


def test_lz4_is_read_by_the_library_and_about_as_small_as_its_own() -> None:
    """Sizes around the format's edges; runs, far matches, noise, and all of it mixed."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for size in [*range(40), 250, 270, 300, 4_000, 65_450, 65_500, 65_530, 65_560, 131_100, 200_000]:
        for kind in range(4):
            noise = chance.randbytes(max(1, size // 3))
            data = (
                bytes(size),
                chance.randbytes(size),
                (noise * 4)[:size],
                b"".join(chance.choice((b"abcd", b"abce", noise[:40], bytes(300))) for _ in range(size // 4 + 1))[
                    :size
                ],
            )[kind]
            batches = []
            for kernel in (COMPILED, TWIN):
                builder = kernel.BatchBuilder()
                builder.append(None, data, NOW)
                batches.append(builder.build(CODECS["lz4"]))
            assert TWIN.decode_batch(batches[0])[0].value == data, f"size {size}, kind {kind}"
            assert len(batches[0]) <= 1.05 * len(batches[1]) + 16, f"size {size}, kind {kind}"


@given(data=st.binary(max_size=200) | st.integers(0, 20_000).map(random.Random(5).randbytes))
def test_the_checksum_is_crc_32c_by_instruction_and_by_table(data: bytes) -> None:
    assert _batch.checksum_of(data) == _batch.checksum_of(data, by_table=True) == crc32c(data)


# --- finishing: a batch that takes its builder's memory along ---


@pytest.mark.parametrize("codec", list(CODECS.values()))
@pytest.mark.parametrize("count", [1, 200, 20_000])
def test_a_finished_batch_is_the_one_that_would_have_been_built(kernel: Kernel, codec: int, count: int) -> None:
    builder = kernel.BatchBuilder()
    for number in range(count if kernel is COMPILED else min(count, 200)):
        builder.append(b"key-%d" % number, b"value %d of many" % number, NOW + number)
    built = builder.build(codec, pid=7, epoch=3, base_sequence=11, transactional=True)
    finished = builder.finish(codec, pid=7, epoch=3, base_sequence=11, transactional=True)
    assert finished == built
    assert (builder.count, len(builder), builder.records()) == (0, 0, b"")
    assert builder.size == kernel.BatchBuilder().size


def test_a_builder_is_used_again_after_its_batch_was_finished(kernel: Kernel) -> None:
    builder = kernel.BatchBuilder()
    with pytest.raises(ValueError, match="at least one record"):
        builder.finish()
    builder.append(b"a", b"1", NOW)
    first = builder.finish()
    builder.append(b"b", b"2", NOW + 5)
    assert [record.value for record in kernel.decode_batch(builder.finish())] == [b"2"]
    assert [record.value for record in kernel.decode_batch(first)] == [b"1"]


def test_a_finished_batch_can_be_stamped(kernel: Kernel) -> None:
    for codec in CODECS.values():
        builder = kernel.BatchBuilder()
        builder.append(None, b"value" * 100, NOW)
        batch = builder.finish(codec, pid=1, epoch=2, base_sequence=3)
        stamp_producer(batch, read_header(batch), 4, 5, 6)
        header = check_batch(batch)
        assert (header.pid, header.epoch, header.base_sequence) == (4, 5, 6)


def test_a_lent_builder_is_not_finished() -> None:
    builder = COMPILED.BatchBuilder()
    builder.append(None, b"value", NOW)
    with memoryview(builder), pytest.raises(BufferError):
        builder.finish()
    assert len(COMPILED.decode_batch(builder.finish())) == 1


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1 << 20, (16 << 20) + 1])
def test_a_room_has_its_size_and_can_be_filled_whatever_was_there_before(kernel: Kernel, size: int) -> None:
    for filling in (b"\xff", b"\x00"):
        room = memoryview(kernel.room(size))
        assert len(room) == size
        room[:] = filling * size
        assert bytes(room[-3:]) == filling * min(size, 3)


def test_memory_that_is_given_back_is_never_in_two_hands() -> None:
    """Rooms of all sizes, dropped and taken in any order, each with a filling of its own."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    held: list[tuple[memoryview, int]] = []
    for number in range(400):
        if len(held) > 8 or (held and chance.random() < 0.4):
            room, filling = held.pop(chance.randrange(len(held)))
            assert bytes(room[:3]) == bytes(room[-3:]) == bytes([filling]) * 3
            continue
        room = memoryview(COMPILED.room(chance.choice((100, 60_000, 70_000, 200_000, 1 << 20, 3 << 20))))
        room[:] = bytes([number % 251]) * len(room)
        held.append((room, number % 251))


# --- LZ4, unpacked by the compiled kernel itself ---


def pieces(chance: random.Random, size: int) -> bytes:
    words = [chance.randbytes(chance.randrange(1, 40)) for _ in range(chance.choice((2, 30, 300)))]
    out = bytearray()
    while len(out) < size:
        out += chance.choice(words) * chance.choice((1, 1, 1, 30))
    return bytes(out[:size])


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 300, 65_535, 65_536, 65_537, 400_000])
def test_lz4_comes_back_from_the_compiled_kernel_as_from_the_library(size: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for data in (pieces(chance, size), chance.randbytes(size), bytes(size)):
        packed = bytes(compress(CODECS["lz4"], data))
        assert bytes(_batch.unpack(CODECS["lz4"], packed, size)) == data
        assert bytes(_batch.unpack(CODECS["lz4"], packed + packed, 2 * size)) == data + data
        if size:
            with pytest.raises(CorruptBatch, match="allowed"):
                _batch.unpack(CODECS["lz4"], packed, size - 1)


def test_lz4_frames_of_another_make_are_left_to_the_library() -> None:
    data = b"some words, " * 1000
    stream = cramjam.lz4.Compressor(level=9, content_checksum=True, block_linked=True)
    stream.compress(data)
    assert bytes(_batch.unpack(CODECS["lz4"], bytes(stream.finish()), len(data))) == data


@pytest.mark.parametrize(
    ("flaw", "block"),
    [
        ("literals that are not there", b"\x50abc"),
        ("a length that does not end", b"\xf0\xff\xff"),
        ("a match that begins before the block", b"\x10a\x02\x00"),
        ("a match at distance nought", b"\x10a\x00\x00\x10a"),
        ("a match without its distance", b"\x10a\x01"),
        ("a match as the last thing", b"\x10a\x01\x00"),
        ("a match longer than a block", b"\x1fa\x01\x00" + b"\xff" * 300 + b"\x00\x10a"),
    ],
)
def test_a_damaged_lz4_block_is_refused(flaw: str, block: bytes) -> None:
    frame = b"\x04\x22\x4d\x18\x60\x40\x82" + len(block).to_bytes(4, "little") + block + bytes(4)
    with pytest.raises(CorruptBatch):
        _batch.unpack(CODECS["lz4"], frame, 1 << 20)


# --- rows: records with something in front ---


class Named(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@given(rows=batches_of_rows, start=st.integers(0, 45), stop=st.integers(0, 45))
def test_rows_are_the_records_with_a_head_within_the_offsets_asked_for(rows: list[Row], start: int, stop: int) -> None:
    for kernel in (COMPILED, TWIN):
        batch = kernel.encode_batch(rows, base_offset=3)
        whole = [Named("t", 5, *record) for record in kernel.decode_batch(batch)]
        assert kernel.decode_rows(batch, Named, ("t", 5)) == whole
        found = kernel.decode_rows(batch, Named, ("t", 5), start=start, stop=stop)
        assert found == [row for row in whole if start <= row.offset < stop]
        assert all(type(row) is Named for row in found)


def test_rows_are_plain_tuples_with_plain_heads() -> None:
    """They are hidden from the garbage collector, so nothing that could refer back may be in them."""

    class WithDict(tuple[int, ...]):
        pass

    batch = COMPILED.encode_batch([(None, b"value", NOW, None)])
    for kind, head in ((list, ()), (WithDict, ()), (Named, ("t", [])), (Named, (True, 5))):
        with pytest.raises(TypeError):
            COMPILED.decode_rows(batch, kind, head)
