"""Records as columns: decoded and encoded without a Python step per record, on both implementations alike."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import CorruptBatch
from fencepost.kernel import CODECS, MarkerType, encode_marker, read_header, stamp_append_time
from fencepost.kernel.record import BytesColumn, HeaderColumn, NumberColumn, RecordColumns, Row
from tests.fuzz.fuzzer import plain
from tests.unit.kernel.implementations import COMPILED, NOW, TWIN, Kernel, as_bytes, as_headers, batches_of_rows

pytestmark = pytest.mark.unit


def cells(column: BytesColumn) -> list[bytes | None]:
    """A column, read by the description in `record.py`."""
    offsets = memoryview(column.offsets).cast("B").cast("q" if column.wide else "i")
    data = bytes(column.data)
    validity = None if column.validity is None else bytes(column.validity)
    found: list[bytes | None] = []
    for i in range(column.first, column.first + column.rows):
        valid = validity is None or validity[i >> 3] >> (i & 7) & 1
        found.append(data[offsets[i] : offsets[i + 1]] if valid else None)
    return found


def headers_in(column: HeaderColumn) -> list[tuple[tuple[str, bytes | None], ...]]:
    offsets = memoryview(column.offsets).cast("B").cast("i")
    names, values = cells(column.names), cells(column.values)
    pairs = [((name or b"").decode(), value) for name, value in zip(names, values, strict=True)]
    return [tuple(pairs[offsets[i] : offsets[i + 1]]) for i in range(column.rows)]


def numbers(column: NumberColumn) -> list[int]:
    return list(memoryview(column.data).cast("B").cast("q"))


def decoded(kernel: Kernel, batches: list[bytearray], **options: object) -> RecordColumns:
    decoder = kernel.ColumnDecoder(headers=True)
    added = sum(decoder.add(batch, **options) for batch in batches)
    columns: RecordColumns = decoder.take()
    assert columns.rows == added
    return columns


def bytes_column(values: list[bytes | None], *, wide: bool = False, first: int = 0) -> BytesColumn:
    """A column with `first` rows of rubbish in front."""
    padded = [b"rubbish"] * first + values
    offsets, data, validity = [0], b"", bytearray(len(padded) // 8 + 1)
    for i, value in enumerate(padded):
        data += value or b""
        offsets.append(len(data))
        validity[i >> 3] |= (value is not None) << (i & 7)
    return BytesColumn(len(values), array("q" if wide else "i", offsets).tobytes(), data, bytes(validity), first, wide)


# --- decoding ---


@given(rows=batches_of_rows, codec=st.sampled_from(list(CODECS.values())), base_offset=st.integers(0, 2**62))
def test_columns_hold_what_records_hold(rows: list[Row], codec: int, base_offset: int) -> None:
    batch = COMPILED.encode_batch(rows, codec=codec, base_offset=base_offset)
    columns = decoded(COMPILED, [batch, batch])
    assert plain(columns) == plain(decoded(TWIN, [batch, batch]))
    assert columns.key is not None and columns.value is not None and columns.headers is not None
    assert columns.timestamp is not None and columns.offset is not None
    assert columns.rows == 2 * len(rows)
    assert cells(columns.key) == [as_bytes(row[0]) for row in rows] * 2
    assert cells(columns.value) == [as_bytes(row[1]) for row in rows] * 2
    assert numbers(columns.timestamp) == [row[2] for row in rows] * 2
    assert headers_in(columns.headers) == [as_headers(row[3]) for row in rows] * 2
    assert numbers(columns.offset) == list(range(base_offset, base_offset + len(rows))) * 2


def test_only_offsets_from_start_to_before_stop_are_taken(kernel: Kernel) -> None:
    """A fetch gives the whole batch that contains the offset asked for."""
    batches = [
        kernel.encode_batch([(None, b"%d" % i, NOW, None) for i in range(base, base + 10)], base_offset=base)
        for base in (0, 10, 20)
    ]
    columns = decoded(kernel, batches, start=7, stop=23)
    assert columns.offset is not None and columns.value is not None
    assert numbers(columns.offset) == list(range(7, 23))
    assert cells(columns.value) == [b"%d" % i for i in range(7, 23)]
    assert decoded(kernel, batches, start=30).rows == 0
    assert decoded(kernel, batches, start=5, stop=5).rows == 0


def test_a_record_outside_the_range_is_still_checked(kernel: Kernel) -> None:
    batch = kernel.encode_batch([(None, b"a", NOW, None), (None, b"b", NOW, None)])
    batch[-1] = 2
    with pytest.raises(CorruptBatch):
        kernel.ColumnDecoder().add(batch, check=False, stop=1)


def test_control_batches_give_no_rows(kernel: Kernel) -> None:
    decoder = kernel.ColumnDecoder()
    assert decoder.add(encode_marker(MarkerType.COMMIT, 1, 0, NOW)) == 0
    assert decoder.rows == 0


def test_a_control_batch_is_skipped_whatever_its_codec(kernel: Kernel) -> None:
    marker = kernel.encode_batch([(b"key", b"value", 5, None)], control=True)
    marker[22] |= 7  # no such codec
    decoder = kernel.ColumnDecoder()
    assert decoder.add(marker, check=False) == 0
    assert decoder.rows == 0


def test_the_type_of_a_timestamp_is_told_per_row(kernel: Kernel) -> None:
    created, appended = (kernel.encode_batch([(None, b"", NOW, None)] * 2) for _ in range(2))
    stamp_append_time(appended, read_header(appended), NOW + 9)
    columns = decoded(kernel, [created, appended])
    assert columns.timestamp is not None and columns.timestamp_type is not None
    assert list(memoryview(columns.timestamp_type).cast("B").cast("i")) == [0, 0, 1, 1]
    assert numbers(columns.timestamp) == [NOW, NOW, NOW + 9, NOW + 9]


def test_headers_are_left_out_unless_asked_for(kernel: Kernel) -> None:
    decoder = kernel.ColumnDecoder()
    decoder.add(kernel.encode_batch([(None, b"v", NOW, [("h", b"x")])]))
    assert decoder.size == 1
    assert decoder.take().headers is None


def test_a_header_name_that_is_no_utf_8_becomes_it(kernel: Kernel) -> None:
    batch = kernel.encode_batch([(None, None, NOW, [("??", b"x"), ("ü", b"y")])])
    at = batch.index(b"??")
    batch[at : at + 2] = b"\xff\xfe"
    columns = decoded(kernel, [batch], check=False)
    assert columns.headers is not None
    assert headers_in(columns.headers) == [(("\ufffd\ufffd", b"x"), ("ü", b"y"))]


def test_taken_columns_are_the_takers_and_the_decoder_begins_anew(kernel: Kernel) -> None:
    decoder = kernel.ColumnDecoder(headers=True)
    first, second = (kernel.encode_batch([(b"k", value, NOW, [("h", value)])]) for value in (b"one", None))
    decoder.add(first)
    assert (decoder.rows, decoder.size) == (1, 8)
    taken = decoder.take()
    assert (decoder.rows, decoder.size) == (0, 0)
    decoder.add(second)
    assert cells(taken.value) == [b"one"]
    assert cells(decoder.take().value) == [None]
    empty = decoder.take()
    assert (empty.rows, cells(empty.key), headers_in(empty.headers)) == (0, [], [])


# --- encoding ---


@given(rows=batches_of_rows, base_offset=st.just(0), data=st.data())
def test_records_go_round_through_columns(rows: list[Row], base_offset: int, data: st.DataObject) -> None:
    """decode → columns → encode gives the bytes of the original records, in both implementations."""
    batch = COMPILED.encode_batch(rows)
    columns = decoded(COMPILED, [batch])
    for kernel in (COMPILED, TWIN):
        builder = kernel.BatchBuilder(capacity=0)
        source = kernel.ColumnSource(columns)
        assert source.rows == len(rows)
        middle = data.draw(st.integers(0, len(rows)))
        assert builder.append_columns(source, 0, middle, timestamp=NOW) == middle
        assert builder.append_columns(source, middle, len(rows), timestamp=NOW) == len(rows)
        assert builder.records() == bytes(batch[61:])
        assert builder.build() == batch


def test_encoding_stops_where_the_batch_is_full_and_goes_on_there(kernel: Kernel) -> None:
    values: list[bytes | None] = [b"x" * size for size in (10, 500, 10, 10, 10)]
    source = kernel.ColumnSource(RecordColumns(5, None, bytes_column(values)))
    builder = kernel.BatchBuilder()
    at, sizes = 0, []
    while at < 5:
        builder.clear()
        at = builder.append_columns(source, at, 5, timestamp=NOW, limit=100)
        sizes.append((builder.count, builder.size))
    # The second is larger than the limit and goes alone; the third to fifth would be 61 + 3 · 17 = 112.
    assert sizes == [(1, 78), (1, 570), (2, 95), (1, 78)]


def test_rows_are_picked_by_number(kernel: Kernel) -> None:
    source = kernel.ColumnSource(RecordColumns(4, bytes_column([b"a", b"b", None, b"d"])))
    builder = kernel.BatchBuilder()
    picked = array("i", [3, 0, 2, 3])
    assert builder.append_columns(source, 1, 4, timestamp=NOW, rows=picked) == 4
    assert [record.key for record in kernel.decode_batch(builder.build())] == [b"a", None, b"d"]


@pytest.mark.parametrize("wide", [False, True])
def test_a_slice_of_wide_or_narrow_columns_is_read_where_it_begins(kernel: Kernel, wide: bool) -> None:
    headers = HeaderColumn(
        3,
        array("i", [0, 0, 1, 1, 3]).tobytes(),
        bytes_column([b"a", b"b", b"c"], wide=wide, first=1),
        bytes_column([b"1", None, b""], first=2),
        validity=b"\xff",
        first=1,
    )
    columns = RecordColumns(
        3,
        bytes_column([b"k", None, b""], wide=wide, first=5),
        bytes_column([b"v", b"w", b"x"], wide=wide, first=13),
        NumberColumn(3, array("q", [0, 7, 8, 9]).tobytes(), b"\x0a", 1),
        headers,
    )
    builder = kernel.BatchBuilder()
    builder.append_columns(kernel.ColumnSource(columns), 0, 3, timestamp=NOW)
    assert [tuple(record)[1:] for record in kernel.decode_batch(builder.build())] == [
        (7, b"k", b"v", (("a", b"1"),)),
        (NOW, None, b"w", ()),
        (9, b"", b"x", (("b", None), ("c", b""))),
    ]


def test_missing_columns_are_null_and_take_the_given_time(kernel: Kernel) -> None:
    builder = kernel.BatchBuilder()
    builder.append_columns(kernel.ColumnSource(RecordColumns(2)), 0, 2, timestamp=NOW)
    assert [tuple(record) for record in kernel.decode_batch(builder.build())] == [
        (0, NOW, None, None, ()),
        (1, NOW, None, None, ()),
    ]


def int32(*values: int) -> bytes:
    return array("i", values).tobytes()


VALUE = BytesColumn(2, int32(0, 1, 2), b"ab")


@pytest.mark.parametrize(
    "columns",
    [
        RecordColumns(2, None, BytesColumn(2, int32(0, 1, 3), b"ab")),
        RecordColumns(2, None, BytesColumn(2, int32(0, -1, 2), b"ab")),
        RecordColumns(2, None, BytesColumn(2, int32(2, 1, 2), b"ab")),
        RecordColumns(2, None, BytesColumn(2, int32(0, 2**31 - 1, 2), b"ab")),
        RecordColumns(2, None, BytesColumn(2, array("q", [0, 1, 2**62]).tobytes(), b"ab", wide=True)),
        RecordColumns(2, None, VALUE, None, HeaderColumn(2, int32(0, 1, 3), VALUE, VALUE)),
        RecordColumns(2, None, VALUE, None, HeaderColumn(2, int32(0, 2, 1), VALUE, VALUE)),
        RecordColumns(2, None, VALUE, None, HeaderColumn(2, int32(-1, 1, 2), VALUE, VALUE)),
        RecordColumns(2, None, VALUE, None, HeaderColumn(2, int32(0, 1, 2), bytes_column([b"a", None]), VALUE)),
    ],
)
def test_offsets_that_point_outside_are_refused_and_nothing_is_added(kernel: Kernel, columns: RecordColumns) -> None:
    builder = kernel.BatchBuilder()
    builder.append(b"k", b"v", NOW)
    before = builder.build()
    source = kernel.ColumnSource(columns)
    with pytest.raises(ValueError, match="row"):
        builder.append_columns(source, 0, 2, timestamp=NOW + 5)
    assert builder.build() == before
    assert builder.max_timestamp == NOW


@pytest.mark.parametrize(
    "columns",
    [
        RecordColumns(-1),
        RecordColumns(3, VALUE),
        RecordColumns(2, VALUE._replace(offsets=int32(0, 1))),
        RecordColumns(2, VALUE._replace(first=1)),
        RecordColumns(2, VALUE._replace(first=-1)),
        RecordColumns(2, VALUE._replace(wide=True)),
        RecordColumns(2, VALUE._replace(validity=b"")),
        RecordColumns(2, VALUE._replace(rows=-2)),
        RecordColumns(2, None, None, NumberColumn(2, bytes(15))),
        RecordColumns(2, None, None, NumberColumn(1, bytes(16))),
        RecordColumns(2, None, None, NumberColumn(2, bytes(16), None, 1)),
        RecordColumns(2, None, None, None, HeaderColumn(2, int32(0, 1), VALUE, VALUE)),
        RecordColumns(2, None, None, None, HeaderColumn(1, int32(0, 1), VALUE, VALUE)),
        RecordColumns(2, VALUE._replace(rows=2**62, first=2**62)),
    ],
)
def test_buffers_that_are_too_short_are_refused_at_once(kernel: Kernel, columns: RecordColumns) -> None:
    with pytest.raises(ValueError):
        kernel.ColumnSource(columns)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 3), (3, 3)])
def test_rows_that_do_not_exist_cannot_be_asked_for(kernel: Kernel, start: int, stop: int) -> None:
    source = kernel.ColumnSource(RecordColumns(2, VALUE))
    with pytest.raises(IndexError):
        kernel.BatchBuilder().append_columns(source, start, stop, timestamp=NOW)
    with pytest.raises(IndexError):
        kernel.BatchBuilder().append_columns(source, start, stop, timestamp=NOW, rows=int32(0, 1))


@pytest.mark.parametrize("row", [-1, 2, 2**31 - 1])
def test_a_picked_row_that_does_not_exist_is_refused(kernel: Kernel, row: int) -> None:
    source = kernel.ColumnSource(RecordColumns(2, VALUE))
    with pytest.raises(ValueError, match="row"):
        kernel.BatchBuilder().append_columns(source, 0, 2, timestamp=NOW, rows=int32(0, row))


# --- partitions ---


@given(keys=st.lists(st.none() | st.binary(max_size=20), max_size=60), partitions=st.integers(1, 9))
def test_rows_are_partitioned_by_key_and_grouped_in_order(keys: list[bytes | None], partitions: int) -> None:
    columns = RecordColumns(len(keys), bytes_column(keys))
    results = []
    for kernel in (COMPILED, TWIN):
        source = kernel.ColumnSource(columns)
        chosen = list(memoryview(kernel.partition_rows(source, partitions)).cast("B").cast("i"))
        assert chosen == [-1 if key is None else kernel.partition_for_key(key, partitions) for key in keys]
        filled = kernel.partition_rows(source, partitions, keyless=partitions - 1)
        order, bounds = kernel.group_rows(filled, partitions)
        results.append((bytes(order), bounds))
        rows = list(memoryview(order).cast("B").cast("i"))
        targets = list(memoryview(filled).cast("B").cast("i"))
        assert len(bounds) == partitions + 1
        for partition in range(partitions):
            group = rows[bounds[partition] : bounds[partition + 1]]
            assert group == [row for row, target in enumerate(targets) if target == partition]
    assert results[0] == results[1]


def test_a_row_for_a_partition_that_does_not_exist_is_refused(kernel: Kernel) -> None:
    for chosen in (int32(0, -1), int32(0, 3)):
        with pytest.raises(ValueError, match="row 1 names partition"):
            kernel.group_rows(chosen, 3)
    with pytest.raises(ValueError, match="at least one"):
        kernel.group_rows(b"", 0)
    with pytest.raises(ValueError, match="at least one"):
        kernel.partition_rows(kernel.ColumnSource(RecordColumns(0)), 0)
