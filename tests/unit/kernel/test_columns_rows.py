"""The fast loops between columns and records: the same bytes and rows as the general code, and as the Python twin."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import CorruptBatch
from fencepost.kernel import CODECS, check_batch, read_header, stamp_append_time
from fencepost.kernel.record import NumberColumn, RecordColumns, Row
from tests.fuzz.fuzzer import plain
from tests.unit.kernel.implementations import COMPILED, NOW, TWIN, Kernel, as_bytes
from tests.unit.kernel.test_columns import bytes_column

pytestmark = pytest.mark.unit

# Lengths around those where a length needs another byte, a copy another step, or another way is taken.
_SIZES = (0, 1, 31, 32, 33, 63, 64, 100, 127, 128, 1023, 1024, 1025, 8191, 8192, 13_000)
_parts = st.one_of(
    st.none(), st.builds(lambda size, byte: bytes([byte]) * size, st.sampled_from(_SIZES), st.integers(0, 255))
)
_times = st.one_of(st.just(NOW), st.integers(NOW - 9000, NOW + 9000), st.sampled_from((-1, 0, 2**63 - 1, -(2**63))))
_headers = st.sampled_from((None, None, None, None, [("h", b"1")]))
_rows = st.lists(st.tuples(_parts, _parts, _times, _headers), min_size=1, max_size=60)


def columns_of(rows: list[Row], *, wide: bool, first: int) -> RecordColumns:
    return RecordColumns(
        len(rows),
        bytes_column([as_bytes(row[0]) for row in rows], wide=wide, first=first),
        bytes_column([as_bytes(row[1]) for row in rows], first=first + 1),
        NumberColumn(len(rows), array("q", [row[2] for row in rows]).tobytes()),
    )


def built(kernel: Kernel, columns: RecordColumns, pieces: list[int], limit: int, checksum: bool) -> list[bytes]:
    """The batches of all rows, which are appended up to each of `pieces` in turn."""
    source, batches, at = kernel.ColumnSource(columns), [], 0
    while at < columns.rows:
        builder = kernel.BatchBuilder(limit)
        for stop in [piece for piece in pieces if piece > at] + [columns.rows]:
            at = builder.append_columns(source, at, stop, timestamp=NOW, limit=limit, checksum=checksum)
            if at < stop:
                break
        batch = bytes(builder.build(pid=7, epoch=1, base_sequence=3))
        check_batch(batch)
        assert bytes(builder.finish(pid=7, epoch=1, base_sequence=3)) == batch
        batches.append(batch)
    return batches


@given(rows=_rows, wide=st.booleans(), first=st.integers(0, 9), data=st.data())
def test_rows_are_encoded_as_by_the_twin(rows: list[Row], wide: bool, first: int, data: st.DataObject) -> None:
    columns = columns_of(rows, wide=wide, first=first)
    pieces = sorted(data.draw(st.lists(st.integers(1, len(rows)), max_size=3)))
    limit = data.draw(st.sampled_from((200, 5_000, 100_000, 2**20)))
    expected = built(TWIN, columns, pieces, limit, False)
    assert built(COMPILED, columns, pieces, limit, False) == expected
    assert built(COMPILED, columns, pieces, limit, True) == expected


def test_a_builder_that_was_summed_begins_anew() -> None:
    columns = columns_of([(b"k", b"v" * 300, NOW, None)] * 100, wide=False, first=0)
    builder = COMPILED.BatchBuilder(2**16)
    builder.append_columns(COMPILED.ColumnSource(columns), 0, 100, timestamp=NOW, checksum=True)
    builder.append(None, b"behind", NOW)
    check_batch(builder.build())
    check_batch(builder.build(CODECS["lz4"]))
    builder.clear()
    builder.append(None, b"again", NOW)
    check_batch(builder.build())
    assert columns.value is not None
    wrong = COMPILED.ColumnSource(columns._replace(value=columns.value._replace(data=b"")))
    with pytest.raises(ValueError, match="inconsistent"):
        builder.append_columns(wrong, 0, 100, timestamp=NOW, checksum=True)
    assert [record.value for record in COMPILED.decode_batch(builder.finish())] == [b"again"]


def test_picked_rows_are_encoded_as_by_the_twin() -> None:
    source = random.Random(5)
    rows: list[Row] = [(b"%d" % i, b"x" * source.choice(_SIZES[:12]), NOW, None) for i in range(300)]
    columns = columns_of(rows, wide=False, first=0)
    picked = array("i", source.choices(range(300), k=500))
    built = []
    for kernel in (COMPILED, TWIN):
        builder = kernel.BatchBuilder(2**20)
        assert builder.append_columns(kernel.ColumnSource(columns), 3, 499, timestamp=NOW, rows=picked) == 499
        built.append(bytes(builder.build()))
    assert built[0] == built[1]
    builder = COMPILED.BatchBuilder()
    with pytest.raises(ValueError, match="row 1"):
        builder.append_columns(COMPILED.ColumnSource(columns), 0, 2, timestamp=NOW, rows=array("i", [0, 300]))


@given(rows=_rows, codec=st.sampled_from((CODECS["none"], CODECS["lz4"])), appended=st.booleans(), data=st.data())
def test_rows_are_decoded_and_scanned_as_by_the_twin(
    rows: list[Row], codec: int, appended: bool, data: st.DataObject
) -> None:
    batch = TWIN.encode_batch(rows, codec=codec, base_offset=10)
    if appended:
        stamp_append_time(batch, read_header(batch), NOW + 5)
    start = data.draw(st.sampled_from((0, 10, 10 + len(rows) // 2)))
    stop = data.draw(st.sampled_from((2**40, 10 + len(rows), 10 + len(rows) // 3)))
    taken = []
    for kernel in (COMPILED, TWIN):
        decoder = kernel.ColumnDecoder()
        decoder.add(batch)
        decoder.add(batch, start=start, stop=stop)
        decoder.add(batch, check=False)
        taken.append(plain(decoder.take()))
    assert taken[0] == taken[1]
    assert COMPILED.scan_batch(batch) == TWIN.scan_batch(batch)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_damaged_bit_is_found_and_nothing_is_added(kernel: Kernel, codec: str) -> None:
    source = random.Random(3)
    good = kernel.encode_batch([(None, source.randbytes(200), NOW, None) for _ in range(200)], codec=CODECS[codec])
    decoder = kernel.ColumnDecoder()
    decoder.add(good)
    before = decoder.rows, decoder.size
    for at in [21, 60, 61, 62, 63, 64, len(good) - 1, *source.sample(range(65, len(good)), 40)]:
        bad = bytearray(good)
        bad[at] ^= 1 << source.randrange(8)
        with pytest.raises(CorruptBatch, match="checksum"):
            decoder.add(bad)
        assert (decoder.rows, decoder.size) == before
    decoder.add(good)
    assert decoder.take().rows == 400


@given(data=st.data())
def test_damaged_records_are_refused_as_by_the_twin(data: st.DataObject) -> None:
    """Without the checksum: no length is believed, in the fast loop neither."""
    rows: list[Row] = [(None, b"v" * 30, NOW, None), (b"key", b"w" * 90, NOW, None)] * 8
    batch = bytearray(TWIN.encode_batch(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    outcomes: list[object] = []
    for kernel in (COMPILED, TWIN):
        decoder = kernel.ColumnDecoder()
        try:
            decoder.add(batch, check=False)
        except CorruptBatch:
            outcomes.append(None)
            assert decoder.rows == 0
        else:
            outcomes.append(plain(decoder.take()))
        try:
            outcomes.append(kernel.scan_batch(batch, check=False))
        except CorruptBatch:
            outcomes.append(None)
    assert outcomes[:2] == outcomes[2:]
