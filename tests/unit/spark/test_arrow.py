"""Record batches as Spark's rows: the columns that are wanted, in the order in which they are."""

from __future__ import annotations

import pytest

from fencepost.client.read.ranges import Range
from fencepost.client.read.scan import FetchedBatch
from fencepost.kernel import encode_batch, read_header
from fencepost.spark import arrow

pytestmark = pytest.mark.unit


def fetched(records: int, base_offset: int = 0) -> FetchedBatch:
    batch = encode_batch(
        [(b"k", b"%d" % n, 1_000 + n, [("h", b"%d" % n)]) for n in range(records)], base_offset=base_offset
    )
    return FetchedBatch(read_header(batch), memoryview(batch))


def test_all_columns_are_those_of_sparks_kafka_source() -> None:
    """PIPE-1."""
    (found,) = arrow.rows(Range("t", 3, 0, 10), [[fetched(2)]], tuple(arrow.COLUMNS))
    assert found.schema == arrow.arrow_schema(tuple(arrow.COLUMNS))
    row = found.slice(1).to_pylist()[0]
    assert (row["key"], row["value"], row["topic"], row["partition"], row["offset"]) == (b"k", b"1", "t", 3, 1)
    assert (row["timestamp"].timestamp(), row["timestampType"]) == (1.001, 0)
    assert row["headers"] == [{"key": "h", "value": b"1"}]


def test_only_the_wanted_columns_come_in_the_wanted_order() -> None:
    """PIPE-1, PIPE-5."""
    (found,) = arrow.rows(Range("t", 3, 1, 3), [[fetched(4)]], ("offset", "value"))
    assert found.to_pylist() == [{"offset": 1, "value": b"1"}, {"offset": 2, "value": b"2"}]
