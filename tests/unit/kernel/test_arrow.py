"""Arrow in and out."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from fencepost import kernel as selected
from fencepost.errors import CorruptBatch
from fencepost.kernel import CODECS, Record
from fencepost.kernel.arrow import arrow_schema, column_source, read_arrow
from tests.unit.kernel.implementations import NOW, Kernel

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _selected(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selected, "ColumnDecoder", kernel.ColumnDecoder)
    monkeypatch.setattr(selected, "ColumnSource", kernel.ColumnSource)


ROWS = [
    (b"k1", b"v1", NOW, [("h", b"x"), ("ü", None)]),
    (None, b"v2", NOW + 1, None),
    (b"k3", None, NOW + 2, []),
    (b"", b"", -1, [("", b"")]),
]


def time_of(milliseconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)


def encoded(kernel: Kernel, batch: pa.RecordBatch, timestamp: int = NOW) -> list[Record]:
    builder = kernel.BatchBuilder()
    assert builder.append_columns(column_source(batch), 0, batch.num_rows, timestamp=timestamp) == batch.num_rows
    records: list[Record] = kernel.decode_batch(builder.build())
    return records


def test_batches_become_one_record_batch_with_the_columns_of_sparks_kafka_source(kernel: Kernel) -> None:
    """PIPE-1: the names, order and meaning of Spark's own source."""
    batches = [kernel.encode_batch(ROWS, codec=codec, base_offset=codec * 4) for codec in CODECS.values()]
    read = read_arrow(batches, topic="orders", partition=3, headers=True, start=3, stop=9)
    read.validate(full=True)
    assert read.schema.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    assert read.schema == arrow_schema(topic=True, partition=True, headers=True)
    assert read.to_pylist() == [
        {
            "key": key,
            "value": value,
            "topic": "orders",
            "partition": 3,
            "offset": offset,
            "timestamp": time_of(timestamp),
            "timestampType": 0,
            "headers": [{"key": name, "value": header} for name, header in headers or ()],
        }
        for offset, (key, value, timestamp, headers) in list(enumerate(ROWS * 5))[3:9]
    ]


def test_columns_that_nobody_asked_for_are_not_there(kernel: Kernel) -> None:
    read = read_arrow([kernel.encode_batch(ROWS)])
    assert read.schema.names == ["key", "value", "offset", "timestamp", "timestampType"]
    assert read.column("key").null_count == 1


def test_nothing_read_is_an_empty_record_batch() -> None:
    read = read_arrow([], topic="t", partition=0, headers=True)
    read.validate(full=True)
    assert read.num_rows == 0
    assert read.schema == arrow_schema(topic=True, partition=True, headers=True)


def test_a_corrupt_batch_is_said_to_be_one(kernel: Kernel) -> None:
    batch = kernel.encode_batch(ROWS)
    batch[-1] ^= 1
    with pytest.raises(CorruptBatch):
        read_arrow([batch])


def test_what_is_read_can_be_written_again(kernel: Kernel) -> None:
    batch = kernel.encode_batch(ROWS)
    read = read_arrow([batch], headers=True)
    assert encoded(kernel, read) == kernel.decode_batch(batch)
    assert [record.key for record in encoded(kernel, read.slice(1, 2))] == [None, b"k3"]


def test_the_read_memory_outlives_the_batch(kernel: Kernel) -> None:
    batch = kernel.encode_batch(ROWS)
    read = read_arrow([batch])
    batch[61:] = bytes(len(batch) - 61)
    assert read.column("value").to_pylist() == [b"v1", b"v2", None, b""]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=str,
)  # fmt: skip
def test_keys_and_values_may_be_bytes_or_text_of_any_kind(kernel: Kernel, kind: pa.DataType) -> None:
    plain = pa.array(["rubbish", "a", None, "", "a long enough text that no view keeps it inline"])
    array = plain.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else plain.cast(kind)
    batch = pa.record_batch({"key": array.slice(1), "value": array.slice(1)})
    expected = [b"a", None, b"", b"a long enough text that no view keeps it inline"]
    assert [(r.key, r.value) for r in encoded(kernel, batch)] == [(cell, cell) for cell in expected]


def test_binary_of_a_fixed_size_and_nothing_at_all_are_columns_too(kernel: Kernel) -> None:
    batch = pa.record_batch(
        {"key": pa.array([b"ab", None], pa.binary(2)), "value": pa.nulls(2), "headers": pa.nulls(2)}
    )
    assert [tuple(r)[2:] for r in encoded(kernel, batch)] == [(b"ab", None, ()), (None, None, ())]


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NOW, None]),
        pa.array([NOW, None], pa.timestamp("ms")),
        pa.array([NOW * 1000 + 999, None], pa.timestamp("us", tz="UTC")),
        pa.array([NOW * 1_000_000 + 1, None], pa.timestamp("ns")),
        pa.array([NOW // 1000, None], pa.timestamp("s", tz="Europe/Paris")),
    ],
    ids=lambda times: str(times.type),
)
def test_timestamps_come_in_any_unit_and_the_missing_ones_are_filled(kernel: Kernel, times: pa.Array) -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": times})
    assert [record.timestamp for record in encoded(kernel, batch, timestamp=5)] == [NOW, 5]


PAIRS = pa.struct([("key", pa.string()), ("value", pa.binary())])


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(PAIRS),
        pa.large_list(PAIRS),
        pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.string())])),
        pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
    ],
    ids=str,
)
def test_headers_are_lists_of_pairs(kernel: Kernel, kind: pa.DataType) -> None:
    name = "name" if kind.value_type.get_field_index("name") >= 0 else "key"
    headers = [
        [{name: "rubbish", "value": b"r"}],
        [{name: "a", "value": b"1"}, {name: "b", "value": None}],
        None,
        [],
        [{name: "c", "value": b""}],
    ]
    batch = pa.record_batch({"headers": pa.array(headers, kind).slice(1)})
    assert [record.headers for record in encoded(kernel, batch)] == [
        (("a", b"1"), ("b", None)), (), (), (("c", b""),),
    ]  # fmt: skip


def test_headers_may_be_a_map(kernel: Kernel) -> None:
    kind = pa.map_(pa.string(), pa.binary())
    batch = pa.record_batch({"headers": pa.array([[("r", b"")], [("a", b"1"), ("b", None)], []], kind).slice(1)})
    assert [record.headers for record in encoded(kernel, batch)] == [(("a", b"1"), ("b", None)), ()]


@pytest.mark.parametrize("pair", [None, {"key": None, "value": b"x"}])
def test_a_header_without_a_name_is_refused(kernel: Kernel, pair: object) -> None:
    batch = pa.record_batch({"headers": pa.array([[pair]], pa.list_(PAIRS))})
    with pytest.raises(ValueError, match="no name"):
        encoded(kernel, batch)


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("key", pa.array([1])),
        ("value", pa.array([[b"x"]])),
        ("timestamp", pa.array(["now"])),
        ("timestamp", pa.array([1.5])),
        ("headers", pa.array(["x"])),
        ("headers", pa.array([["x"]])),
        ("headers", pa.array([[{"a": "x", "b": b"y"}]])),
        ("headers", pa.array([[{"key": 5, "value": b"y"}]])),
    ],
)
def test_a_column_of_another_type_is_named(column: str, array: pa.Array) -> None:
    with pytest.raises(TypeError, match=f"column {column}"):
        column_source(pa.record_batch({column: array}))


def test_a_source_of_an_empty_batch_has_no_rows(kernel: Kernel) -> None:
    chunked = pa.table({"key": pa.chunked_array([[b"a", b"b"], [b"c"]]), "other": pa.chunked_array([[1, 2, 3]])})
    empty = chunked.schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=chunked.schema)]
    assert all(column_source(batch).rows == 0 for batch in empty)
