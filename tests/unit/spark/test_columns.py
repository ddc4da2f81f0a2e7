"""Record batches as Spark's rows: the columns that are wanted, in the order in which they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fencepost.client.read.ranges import Range
from fencepost.client.read.scan import FetchedBatch
from fencepost.errors import FencepostError
from fencepost.kernel import encode_batch, read_header
from fencepost.spark.columns import COLUMNS, arrow_schema, rows

pytestmark = pytest.mark.unit


def fetched(records: int, base_offset: int = 0) -> FetchedBatch:
    batch = encode_batch(
        [(b"k", b"%d" % n, 1_000 + n, [("h", b"%d" % n)]) for n in range(records)], base_offset=base_offset
    )
    return FetchedBatch(read_header(batch), memoryview(batch))


LARGEST = 2**63 - 1


def timed(*times: int) -> FetchedBatch:
    batch = encode_batch([(None, b"v", time, []) for time in times], base_offset=7)
    return FetchedBatch(read_header(batch), memoryview(batch))


@pytest.mark.parametrize("time", [LARGEST, LARGEST // 1000 + 1, -LARGEST // 1000 - 1])
def test_a_time_that_sparks_timestamps_cannot_hold_is_named_or_read_as_null(time: int) -> None:
    """PIPE-1: the record is not lost, and the others keep their times."""
    wanted, columns, batches = Range("t", 3, 0, 99), ("offset", "timestamp"), [[timed(1_000, time, 2_000)]]
    with pytest.raises(FencepostError, match=rf"t-3: the record at offset 8 has the time {time} ms.*OutOfRange=null"):
        list(rows(wanted, batches, columns))
    (found,) = rows(wanted, batches, columns, null_times=True)
    assert found.schema == arrow_schema(columns)
    micros = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert list(zip(found.column("offset").to_pylist(), micros, strict=True)) == [(7, 10**6), (8, None), (9, 2 * 10**6)]
    (untimed,) = rows(wanted, batches, ("value",))
    assert untimed.num_rows == 3


def test_the_latest_time_that_fits_is_read() -> None:
    (found,) = rows(Range("t", 3, 0, 99), [[timed(LARGEST // 1000)]], ("timestamp",))
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [LARGEST // 1000 * 1000]


def test_all_columns_are_those_of_sparks_kafka_source() -> None:
    """PIPE-1."""
    (found,) = rows(Range("t", 3, 0, 10), [[fetched(2)]], tuple(COLUMNS))
    assert found.schema == arrow_schema(tuple(COLUMNS))
    row = found.slice(1).to_pylist()[0]
    assert (row["key"], row["value"], row["topic"], row["partition"], row["offset"]) == (b"k", b"1", "t", 3, 1)
    assert (row["timestamp"].timestamp(), row["timestampType"]) == (1.001, 0)
    assert row["headers"] == [{"key": "h", "value": b"1"}]


def test_only_the_wanted_columns_come_in_the_wanted_order() -> None:
    """PIPE-1, PIPE-5."""
    (found,) = rows(Range("t", 3, 1, 3), [[fetched(4)]], ("offset", "value"))
    assert found.to_pylist() == [{"offset": 1, "value": b"1"}, {"offset": 2, "value": b"2"}]
