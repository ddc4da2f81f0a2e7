"""Rows become record batches: partition, order, sizes, dead letters, and the manifest that guards them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fencepost.client.micro_batch.targets import Target, TimeLimits
from fencepost.core.micro_batch.protocol import Poisoned
from fencepost.errors import RecordTooLarge
from fencepost.kernel import CODECS, decode_batch, partition_for_key
from fencepost.spark.freeze import (
    Encoder,
    Encoding,
    FrozenBatch,
    Unwritable,
    compare,
    freeze_rows,
    manifest_of,
)
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

TARGET = Target("t", partitions=4, max_bytes=2_000, compacted=False)


def encoding(**changes: Any) -> Encoding:
    fields: dict[str, Any] = {
        "targets": {"t": TARGET, "dead": Target("dead", 1, 2_000, False)},
        "topic": "t",
        "codec": CODECS["none"],
        "level": None,
        "batch_bytes": 500,
        "dead_letter": None,
        "choose": None,
    }
    return Encoding(**{**fields, **changes})


def rows(keys: list[bytes | None], values: list[bytes | None], **columns: Any) -> pa.RecordBatch:
    arrays = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary()), **columns}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def freeze(batch: pa.RecordBatch, how: Encoding, map_partition: int = 0) -> list[FrozenBatch]:
    return list(Encoder(how, map_partition).encode([batch]))


def records(frozen: list[FrozenBatch]) -> dict[TopicPartition, list[bytes | None]]:
    found: dict[TopicPartition, list[bytes | None]] = {}
    for batch in sorted(frozen, key=lambda batch: batch.entry.number):
        found.setdefault(batch.where, []).extend(record.value for record in decode_batch(batch.payload))
    return found


def test_rows_go_where_kafkas_partitioner_sends_them_and_stay_in_order() -> None:
    keys: list[bytes | None] = [b"k%d" % (n % 9) for n in range(300)]
    frozen = freeze(rows(keys, [b"%d" % n for n in range(300)]), encoding())
    wanted: dict[TopicPartition, list[bytes | None]] = {}
    for number, key in enumerate(keys):
        assert key is not None
        wanted.setdefault(TopicPartition("t", partition_for_key(key, 4)), []).append(b"%d" % number)
    assert records(frozen) == wanted
    assert [batch.entry.number for batch in frozen] == list(range(1, len(frozen) + 1))
    assert all(batch.entry.size <= 500 for batch in frozen)
    assert len(frozen) > 4


def test_rows_without_a_key_go_to_one_partition_and_tasks_begin_at_different_ones() -> None:
    batch = rows([None] * 3, [b"a", b"b", b"c"])
    assert [set(records(freeze(batch, encoding(), task))) for task in (0, 1)] == [
        {TopicPartition("t", 0)},
        {TopicPartition("t", 1)},
    ]


@pytest.mark.parametrize(
    ("tasks", "goes_to"),
    [
        (None, [{0, 1, 2, 3}, {1, 2, 3, 0}]),
        (1, [{0, 1, 2, 3}]),
        (2, [{0, 2}, {1, 3}]),
        (4, [{0}, {1}, {2}, {3}]),
        (3, [{0, 1, 2, 3}] * 3),  # three of them cannot share four partitions evenly
        (8, [{0, 1, 2, 3}] * 8),  # and eight of them have to share in any case
    ],
)
def test_tasks_that_divide_the_partitions_evenly_each_stay_among_their_own(
    tasks: int | None, goes_to: list[set[int]]
) -> None:
    """PIPE-5: of rows without a key, so that nothing has to be shuffled."""
    how = encoding(map_partitions=tasks)
    for task, wanted in enumerate(goes_to):
        batches = iter([rows([None], [b"%d" % n]) for n in range(8)])
        assert {batch.where.partition for batch in Encoder(how, task).encode(batches)} == wanted


@pytest.mark.parametrize("tasks", [None, 1, 2, 4])
def test_rows_without_a_key_reach_every_partition_over_micro_batches(tasks: int | None) -> None:
    """Each micro-batch has one Arrow batch, of the first task alone. Frozen again, its rows go to the same place."""
    batch = rows([None], [b"a"])
    reached = []
    for start in range(40, 44):
        how = encoding(map_partitions=tasks, start=start)
        (where,) = records(freeze(batch, how))
        assert set(records(freeze(batch, how))) == {where}
        reached.append(where.partition)
    assert sorted(reached) == [0, 1, 2, 3]


@pytest.mark.parametrize("start", [0, 1, 7])
def test_wherever_turns_begin_tasks_that_divide_the_partitions_share_none(start: int) -> None:
    """PIPE-5: nothing has to be shuffled."""
    how = encoding(map_partitions=2, start=start)
    first, second = (
        {batch.where.partition for batch in Encoder(how, task).encode([rows([None], [b"a"])] * 8)} for task in (0, 1)
    )
    assert (first | second, first & second) == ({0, 1, 2, 3}, set())


def test_each_topic_has_turns_of_its_own() -> None:
    """Two topics in every Arrow batch: counted together, each would reach every second partition alone."""
    batch = rows([None] * 2, [b"a", b"b"], topic=pa.array(["t", "u"]))
    how = encoding(topic=None, targets={"t": TARGET, "u": replace(TARGET, topic="u")})
    found = {each.where for each in Encoder(how, 0).encode([batch] * 4)}
    assert found == {TopicPartition(topic, partition) for topic in "tu" for partition in range(4)}


def test_topics_of_rows_are_looked_up_once_and_missing_ones_are_dead_letters() -> None:
    batch = rows([None] * 4, [b"a", b"b", b"c", b"d"], topic=pa.array(["t", "new", "gone", "new"]))
    asked: list[set[str]] = []

    def find(names: Iterable[str]) -> dict[str, Target]:
        asked.append(set(names))
        return {"new": replace(TARGET, topic="new")}

    encoder = Encoder(encoding(topic=None, dead_letter="dead", find=find), 0)
    frozen = list(encoder.encode([batch, batch]))
    assert asked == [{"new", "gone"}]
    assert {where.topic for where in records(frozen)} == {"t", "new", "dead"}
    assert len(records(frozen)[TopicPartition("dead", 0)]) == 2
    assert encoder.targets.keys() == {"t", "dead", "new"}
    told = freeze(batch, encoding(topic=None, dead_letter="dead"))
    assert len(records(told)[TopicPartition("dead", 0)]) == 3


HOUR = 3_600_000


def timed(*times: int | None, **changes: Any) -> tuple[pa.RecordBatch, Encoding]:
    """Rows with these times, in microseconds as Spark has them, to a topic that takes an hour before and after."""
    column = pa.array([None if at is None else at * 1000 for at in times], pa.timestamp("us", "UTC"))
    values: list[bytes | None] = [b"%d" % number for number in range(len(times))]
    limited = replace(TARGET, times=TimeLimits(HOUR, HOUR), max_bytes=100_000)
    targets = {"t": limited, "dead": Target("dead", 1, 100_000, False, TimeLimits(HOUR, HOUR))}
    fields: dict[str, Any] = {"targets": targets, "dead_letter": "dead", "batch_bytes": 100_000}
    return rows([b"k"] * len(times), values, timestamp=column), encoding(**{**fields, **changes})


def values_of(frozen: list[FrozenBatch], topic: str) -> list[bytes | None]:
    return [value for where, found in records(frozen).items() if where.topic == topic for value in found]


def test_rows_whose_time_the_target_refuses_are_dead_letters_that_name_the_limit() -> None:
    now = time.time_ns() // 1_000_000
    minute = 60_000
    batch, how = timed(
        now,
        None,
        now - HOUR + minute,
        now + HOUR - minute,
        now - HOUR - minute,
        now + HOUR + minute,
        -(10**14),  # before the year 1, where Python has no date
    )
    frozen = freeze(batch, how)
    assert values_of(frozen, "t") == [b"0", b"1", b"2", b"3"]
    dead: dict[Any, dict[str, Any]] = {
        record.value: dict(record.headers)
        for each in frozen
        if each.where.topic == "dead"
        for record in decode_batch(each.payload)
    }
    assert set(dead) == {b"4", b"5", b"6"}
    assert b"more than 3600000 ms behind the clock (message.timestamp.before.max.ms)" in dead[b"4"]["fencepost.reason"]
    assert b"more than 3600000 ms ahead of the clock (message.timestamp.after.max.ms)" in dead[b"5"]["fencepost.reason"]
    assert dead[b"5"]["fencepost.timestamp"] == b"%d" % (now + HOUR + minute)
    assert dead[b"6"]["fencepost.timestamp"] == b"%d" % -(10**14)


def test_a_time_that_means_none_is_not_written_as_one() -> None:
    """-1 ms is a moment of 1969, and Kafka's sign for a record without a time."""
    anywhen = {"t": replace(TARGET, times=TimeLimits()), "dead": Target("dead", 1, 9_000, False, TimeLimits())}
    batch, how = timed(-1, -2, 0, targets=anywhen)
    frozen = freeze(batch, how)
    assert (values_of(frozen, "t"), values_of(frozen, "dead")) == ([b"1", b"2"], [b"0"])
    with pytest.raises(Unwritable, match=r"1 rows .* its time is -1 ms.* The first one: topic t, key b'k', time -1 ms"):
        freeze(*timed(-1, -2, 0, targets=anywhen, dead_letter=None))


def test_a_topic_that_writes_its_own_times_takes_any() -> None:
    batch, how = timed(-1, 0, 10**13, targets={"t": TARGET}, dead_letter=None)
    assert values_of(freeze(batch, how), "t") == [b"0", b"1", b"2"]


def test_times_keep_a_distance_from_the_limits_once_one_was_refused() -> None:
    now = time.time_ns() // 1_000_000
    times = (now - HOUR + 60_000, now, now + HOUR - 60_000)
    assert values_of(freeze(*timed(*times)), "dead") == []
    assert values_of(freeze(*timed(*times, slack_ms=600_000)), "dead") == [b"0", b"2"]


@pytest.mark.parametrize(
    ("configs", "limits"),
    [
        ({}, TimeLimits()),
        ({"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "1"}, None),
        ({"message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "7"}, TimeLimits(0, 7)),
        ({"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "7"}, TimeLimits(5, 7)),
    ],
)
def test_the_limits_are_those_of_the_topics_configs(configs: dict[str, str], limits: TimeLimits | None) -> None:
    assert TimeLimits.of(configs) == limits


def test_a_row_may_name_its_partition_and_its_topic() -> None:
    batch = rows(
        [None] * 3,
        [b"a", b"b", b"c"],
        partition=pa.array([3, None, 2], pa.int32()),
        topic=pa.array(["t", "u", "t"]),
    )
    how = encoding(topic=None, targets={"t": TARGET, "u": Target("u", 1, 2_000, False)})
    assert records(freeze(batch, how)) == {
        TopicPartition("t", 3): [b"a"],
        TopicPartition("u", 0): [b"b"],
        TopicPartition("t", 2): [b"c"],
    }


def test_a_partitioner_of_ones_own_is_asked_where_the_row_names_none() -> None:
    batch = rows([b"k", b"k"], [b"a", b"b"], partition=pa.array([1, None], pa.int32()))
    how = encoding(choose=lambda rows, _count: pa.array([3] * rows.num_rows, pa.int32()))
    assert records(freeze(batch, how)) == {TopicPartition("t", 1): [b"a"], TopicPartition("t", 3): [b"b"]}


@pytest.mark.parametrize(
    ("batch", "targets", "match"),
    [
        (rows([None], [b"x"], partition=pa.array([4], pa.int32())), {"t": TARGET}, "no such partition: t has 4"),
        (rows([None], [b"x"], partition=pa.array([-3], pa.int32())), {"t": TARGET}, "no such partition"),
        (rows([None], [b"x"], topic=pa.array(["v"])), {"t": TARGET}, "no topic 'v'"),
        (rows([None], [b"x"]), {"t": Target("t", 4, 2_000, True)}, "the topic is compacted"),
        (rows([b"k"], [b"x" * 3_000]), {"t": TARGET}, "more than t accepts"),
    ],
)
def test_an_unwritable_row_fails_or_becomes_a_dead_letter_with_its_reason(
    batch: pa.RecordBatch, targets: dict[str, Target], match: str
) -> None:
    with pytest.raises((Unwritable, RecordTooLarge), match=match):
        freeze(batch, encoding(targets=targets))
    how = encoding(targets={**targets, "dead": Target("dead", 1, 2_000, False)}, dead_letter="dead")
    (dead,) = freeze(batch, how)
    (record,) = decode_batch(dead.payload)
    assert dead.where == TopicPartition("dead", 0)
    assert match.encode() in (dict(record.headers)["fencepost.reason"] or b"")
    assert record.value is not None
    assert record.value in (b"x", (b"x" * 3_000)[: len(record.value)])


def test_a_large_row_between_small_ones_is_taken_out_alone() -> None:
    values: list[bytes | None] = [b"a", b"x" * 3_000, b"b"]
    how = encoding(dead_letter="dead")
    found = records(freeze(rows([b"k"] * 3, values), how))
    assert found[TopicPartition("t", partition_for_key(b"k", 4))] == [b"a", b"b"]


def test_a_row_that_only_fits_compressed_is_written() -> None:
    (only,) = freeze(rows([b"k"], [b"x" * 3_000]), encoding(codec=CODECS["lz4"]))
    assert only.entry.size < 2_000


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_a_header_without_a_name_is_unwritable() -> None:
    given: list[Any] = [[("a", b"1")], [(None, b"2")], None, [None, ("b", None)], [], [("c", b"3")]]
    headers = pa.array(given, HEADERS)
    batch = rows([b"k"] * 6, [b"%d" % number for number in range(6)], headers=headers)
    how = encoding(targets={"t": TARGET, "dead": Target("dead", 1, 50_000, False)}, batch_bytes=50_000)
    with pytest.raises(Unwritable, match="2 rows cannot be written: a header without a name"):
        freeze(batch, how)
    how = replace(how, dead_letter="dead")
    found = records(freeze(batch, how))
    assert found[TopicPartition("t", partition_for_key(b"k", 4))] == [b"0", b"2", b"4", b"5"]
    assert found[TopicPartition("dead", 0)] == [b"1", b"3"]
    sliced = records(freeze(batch.slice(1), how))
    assert sliced[TopicPartition("dead", 0)] == [b"1", b"3"]


def test_dead_letters_with_large_headers_each_find_room() -> None:
    headers = pa.array([[{"key": "h", "value": b"x" * 700}]] * 5, HEADERS)
    batch = rows([b"k"] * 5, [b"y" * 9_000] * 5, headers=headers)
    dead = Target("dead", 1, 6_000, False)
    frozen = freeze(batch, encoding(targets={"t": TARGET, "dead": dead}, dead_letter="dead"))
    assert sum(batch.entry.records for batch in frozen) == 5
    assert max(batch.entry.size for batch in frozen) <= dead.max_bytes


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_rows_that_grow_by_compression_are_written_as_they_are(codec: str, dead_letter: str | None) -> None:
    values: list[bytes | None] = [random.Random(number).randbytes(180) for number in range(200)]
    how = encoding(codec=CODECS[codec], batch_bytes=2_000, dead_letter=dead_letter)
    frozen = freeze(rows([b"k"] * len(values), values), how)
    assert records(frozen) == {TopicPartition("t", partition_for_key(b"k", 4)): values}
    assert max(batch.entry.size for batch in frozen) <= TARGET.max_bytes


def row_of(batch: FrozenBatch) -> Any:
    topic, partition = batch.where
    return SimpleNamespace(
        topic=topic,
        partition=partition,
        **batch.entry._asdict(),
    )


def test_the_manifest_is_in_the_order_of_the_dataframe_whatever_order_rows_come_in() -> None:
    collected = [
        row_of(batch)
        for task in (2, 0, 1)
        for batch in reversed(freeze(rows([b"k"] * 200, [b"%d" % n for n in range(200)]), encoding(), task))
    ]
    manifest = manifest_of(collected)
    (entries,) = manifest.entries.values()
    assert [(e.map_partition, e.number) for e in entries] == sorted((e.map_partition, e.number) for e in entries)
    assert sum(manifest.records.values()) == 600


def test_a_batch_that_is_not_the_frozen_one_is_poison() -> None:
    (batch,) = freeze(rows([b"k"], [b"v"]), encoding())
    (other,) = freeze(rows([b"k"], [b"w"]), encoding())
    entry = batch.entry
    compare(batch.where, entry, entry, batch.payload)
    with pytest.raises(Poisoned, match="but the manifest has"):
        compare(batch.where, None, entry, batch.payload)
    with pytest.raises(Poisoned, match="but the manifest has"):
        compare(batch.where, entry, entry._replace(checksum=other.entry.checksum), other.payload)
    with pytest.raises(Poisoned, match="differs from the frozen one"):
        compare(batch.where, entry, entry, other.payload)


def test_a_row_without_its_content_asks_for_another_pass_and_is_not_encoded() -> None:
    """PIPE-5: Spark leaves the content of long rows out while it is not known how long rows are."""
    asked = rows([b"k"] * 3, [b"a", None, b"c"], long=pa.array([False, True, False]))
    fine = rows([b"k"] * 2, [b"a", b"c"], long=pa.array([False, False]))
    (said,) = freeze_rows(encoding())(iter([asked, fine]))
    manifest = manifest_of([SimpleNamespace(**row) for row in said.to_pylist()])
    assert (manifest.lacks_content, manifest.batches) == (True, {})
    frozen = freeze(fine, encoding())
    assert records(frozen) == {TopicPartition("t", partition_for_key(b"k", 4)): [b"a", b"c"]}
    (said,) = freeze_rows(encoding())(iter([fine]))
    assert not manifest_of([SimpleNamespace(**row) for row in said.to_pylist()]).lacks_content


def test_small_batches_are_handed_to_spark_together_and_a_large_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.spark.freeze._TOGETHER", 1_000)
    values: list[bytes | None] = [b"%d" % number for number in range(300)]
    found = list(freeze_rows(encoding(batch_bytes=300))(iter([rows([b"k"] * 300, values)])))
    sizes = [sum(each.column("size").to_pylist()) for each in found]
    assert len(found) > 1
    assert max(each.num_rows for each in found) > 1
    assert max(sizes) <= 1_000
    payloads = [payload for each in found for payload in each.column("payload").to_pylist()]
    assert [record.value for payload in payloads for record in decode_batch(bytearray(payload))] == values


def without_keys(values: list[bytes]) -> pa.RecordBatch:
    """As rows come whose DataFrame has no column key."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["value"])


def test_rows_without_a_column_key_are_records_without_a_key() -> None:
    """PIPE-2."""
    found = freeze(without_keys([b"%d" % n for n in range(10)]), encoding())
    records = [record for batch in found for record in decode_batch(bytes(batch.payload))]
    assert [(record.key, record.value) for record in records] == [(None, b"%d" % n) for n in range(10)]


def test_rows_without_a_column_key_are_unwritable_on_a_compacted_topic() -> None:
    """PIPE-2."""
    compacted = {"t": Target("t", 4, 2_000, compacted=True)}
    with pytest.raises(Unwritable, match="no key, and the topic is compacted"):
        freeze(without_keys([b"v"]), encoding(targets=compacted))


def test_the_users_partitioner_sees_a_key_column_where_the_dataframe_has_none() -> None:
    """PIPE-2."""

    def by_key(batch: pa.RecordBatch, partitions: int) -> pa.Array:
        assert batch.column("key").null_count == batch.num_rows
        return pa.array([partitions - 1] * batch.num_rows, pa.int32())

    (batch,) = freeze(without_keys([b"v"]), encoding(choose=by_key))
    assert batch.where == TopicPartition("t", 3)
