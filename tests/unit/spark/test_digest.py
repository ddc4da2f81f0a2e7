"""The digest of rows: equal for equal rows in any order, and different for others (PIPE-2)."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from fencepost.spark.digest import RowDigest, digest_rows, digest_text

pytestmark = pytest.mark.unit

HEADER = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
        ("headers", HEADER), ("timestamp", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {"key": b"k", "value": None},
    {"key": None, "value": b"k"},
    {"key": b"k", "value": b""},
    {"key": b"", "value": b"k"},
    {"key": None, "value": None},
    {"key": b"ab", "value": b"c"},
    {"key": b"a", "value": b"bc"},
    {"key": b"a", "value": b"bc", "topic": "t"},
    {"key": b"a", "value": b"bc", "partition": 1},
    {"key": b"a", "value": b"bc", "headers": [{"key": "h", "value": b"1"}]},
    {"key": b"a", "value": b"bc", "headers": []},
    {"key": b"a", "value": b"bc", "timestamp": datetime(2026, 1, 1, tzinfo=UTC)},
]


def digest_of(rows: list[dict[str, Any]], split: int = 100) -> str:
    """The digest of rows that come in Arrow batches of `split` rows."""
    found = RowDigest()
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for batch in table.to_batches(max_chunksize=split):
        found.add(batch)
    return digest_text([(found.count, found.sum)])


def test_rows_in_another_order_and_in_other_batches_have_the_same_digest() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    shuffled = random.Random(seed).sample(ROWS, len(ROWS))
    assert digest_of(shuffled, 5) == digest_of(ROWS)
    parts = [
        (row["count"], row["digest"])
        for half in (shuffled[:4], shuffled[4:], [])
        for batch in digest_rows()(iter(pa.Table.from_pylist(half, schema=SCHEMA).to_batches()))
        for row in batch.to_pylist()
    ]
    assert digest_text(parts) == digest_of(ROWS)


def test_the_types_in_which_spark_hands_rows_over_do_not_matter() -> None:
    """The driver collects a few rows, tasks get others as Arrow batches, in the session's time zone."""
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA).to_batches()[0]
    others = {"key": pa.large_binary(), "value": pa.large_binary(), "topic": pa.large_string()}
    others["timestamp"] = pa.timestamp("ns", "Asia/Tokyo")
    found = RowDigest()
    cells = [rows.column(name).cast(others.get(name, rows.column(name).type)) for name in rows.schema.names]
    found.add(pa.RecordBatch.from_arrays(cells, names=rows.schema.names))
    assert digest_text([(found.count, found.sum)]) == digest_of(ROWS)


def test_each_difference_of_a_row_and_each_repetition_changes_the_digest() -> None:
    single = [digest_of([row]) for row in ROWS]
    assert len(set(single)) == len(ROWS)
    assert digest_of([ROWS[0]] * 2) not in (digest_of([ROWS[0]]), digest_of([]))
    assert digest_of([ROWS[0], ROWS[6]]) != digest_of([ROWS[1], ROWS[6]])
