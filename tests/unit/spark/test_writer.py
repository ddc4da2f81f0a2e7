"""The writer of `format("fencepost")` without Spark: rows in, record batches out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, StructType

from fencepost.client.micro_batch import targets
from fencepost.client.micro_batch.runner import Runner
from fencepost.client.micro_batch.targets import Target
from fencepost.core.micro_batch.protocol import BatchOutcome, Origin
from fencepost.core.producers.pid import Identity
from fencepost.errors import ConfigError, FencepostError, Unreachable
from fencepost.spark import writer
from fencepost.spark.columns import normalised_rows
from fencepost.spark.freeze import Encoder, FrozenBatch, ManifestEntry, Unwritable
from fencepost.spark.stage import carried
from fencepost.spark.writer import FrozenRows, StreamWriter, batch_writer, stream_writer
from fencepost.types import Epoch, Pid, TopicPartition

pytestmark = pytest.mark.unit

RUN = "0" * 8 + "-0000" * 3 + "-" + "0" * 12
NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "name": "n"}


def writer_of(columns: dict[str, str], **options: str) -> StreamWriter:
    schema = StructType()
    for name, kind in columns.items():
        schema = schema.add(name, kind)
    return stream_writer({**NOBODY, **options}, schema)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster with the topics `there` and `dead`, silent at the first question. Returns the names it was asked."""
    asked: list[str] = []

    def describe(_admin: object, topic: str, *, create: int | None = None) -> Target:
        asked.append(topic)
        if len(asked) == 1:
            raise Unreachable("it restarts")
        if topic not in ("there", "dead"):
            raise ConfigError(f"the target topic {topic!r} does not exist")
        return Target(topic, 2, 1_000_000, compacted=False)

    monkeypatch.setattr(targets, "describe", describe)
    return asked


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_the_rows_of_spark_40_keep_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 hands over Python rows, whose times are local and name no time zone."""
    monkeypatch.setattr(writer, "ARROW", False)
    given = [datetime(2026, month, 1, 12, 30, tzinfo=UTC) for month in range(1, 13)]
    local = [at.astimezone().replace(tzinfo=None) for at in given]
    rows = [Row(Value="x", odd=object(), timestamp=at) for at in [*local, None]]
    schema = {"Value": "string", "odd": "integer", "timestamp": "timestamp"}
    (found,) = writer_of(schema, topic="t", keepTimestamps="true")._as_arrow(iter(rows))
    times = found.column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [*(int(at.timestamp()) * 1_000_000 for at in given), None]
    assert found.schema.names == ["Value", "timestamp"]


def test_the_rows_of_spark_40_have_the_columns_of_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ARROW", False)
    header = StructType().add("key", "string").add("value", "binary")
    schema = StructType().add("key", "binary").add("value", "string").add("partition", "integer").add("topic", "string")
    found = stream_writer({**NOBODY, "topics": "t"}, schema.add("headers", ArrayType(header)))
    given = Row(key=bytearray(b"k"), value="v", partition=1, topic="t", headers=[Row(key="h", value=bytearray(b"1"))])
    empty = Row(key=None, value=None, partition=None, topic=None, headers=None)
    (taken,) = found._as_arrow(iter([given, empty]))
    rows = normalised_rows(taken, found._columns)
    assert rows.to_pylist()[0] == {
        "key": b"k",
        "value": b"v",
        "headers": [{"key": "h", "value": b"1"}],
        "partition": 1,
        "topic": "t",
    }
    assert set(rows.to_pylist()[1].values()) == {None}


def test_a_task_waits_for_the_server_when_it_looks_up_the_topics_of_its_rows(cluster: list[str]) -> None:
    encoder = Encoder(writer_of({"value": "string", "topic": "string"})._encoding(0), 0)
    value = pa.array([b"a", b"b", b"c"], pa.binary())
    rows = pa.RecordBatch.from_pydict({"value": value, "topic": ["there", "none", "there"]})
    with pytest.raises(Unwritable, match="no topic 'none'; `fencepost topic create none` makes it"):
        list(encoder.encode([rows]))
    assert list(encoder.targets) == ["there"]
    assert sorted(cluster[1:]) == ["none", "there"]  # each once


def test_a_listed_topic_may_be_missing_if_there_are_dead_letters(cluster: list[str]) -> None:
    """As in the sink of foreachBatch: its rows go to the dead letters."""
    columns = {"value": "string", "topic": "string"}
    state = writer_of(columns, topics="there,none", deadLetter="dead").__getstate__()
    assert set(state["_targets"]) == {"there", "dead"}
    for options in ({"topics": "there,none"}, {"topic": "none", "deadLetter": "dead"}, {"topic": "none"}):
        with pytest.raises(ConfigError, match="'none' does not exist"):
            writer_of(columns, **options).__getstate__()


class Stage:
    """A stage that accepts batches up to 900 bytes."""

    def __init__(self) -> None:
        self.put_in: list[int] = []
        self.closed = False

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def put(self, batch: FrozenBatch) -> None:
        self.put_in.append(batch.entry.number)

    def finish(self) -> tuple[FrozenBatch, ...]:
        return ()


@pytest.mark.parametrize(("limit", "staged"), [(300, []), (299, [1, 2, 3]), (100, [1, 2, 3]), (0, [1, 2, 3])])
def test_a_task_stages_all_of_its_batches_or_none(limit: int, staged: list[int]) -> None:
    stage = Stage()
    where = TopicPartition("t", 0)
    frozen = [FrozenBatch(where, ManifestEntry(7, number, 1, 100, 0), bytearray(100)) for number in (1, 2, 3)]
    opened: Any = lambda: stage  # noqa: E731 - typed
    found = carried(iter(frozen), limit, opened)
    assert stage.put_in == staged
    assert stage.closed == bool(staged)
    assert [(each.entry.map_partition, each.entry.number) for each in found] == (
        [] if staged else [(7, n) for n in (1, 2, 3)]
    )
    assert carried(iter([]), 0, opened) == ()


@pytest.mark.parametrize("messages", [[], [None], [FrozenRows("q", RUN, 7, 0, ()), None]])
def test_a_task_without_a_message_fails_the_batch(messages: list[FrozenRows | None]) -> None:
    """Its rows would be lost."""
    with pytest.raises(FencepostError, match="returned nothing: the micro-batch is not written"):
        writer_of({"value": "string"}, topic="t").commit(messages, 7)
    writer_of({"value": "string"}, topic="t").abort(messages, 7)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([FrozenRows("q", RUN, 7, 0, ()), FrozenRows("r", RUN, 7, 1, ())], "several queries or batches"),
        ([FrozenRows("q", RUN, 7, 0, ()), FrozenRows("q", RUN, 6, 1, ())], "several queries or batches"),
        ([FrozenRows("", RUN, 7, 0, ())], "does not tell its tasks which query"),
        ([FrozenRows("q", "", 7, 0, ())], "does not tell its tasks which query"),
    ],
)
def test_messages_that_do_not_belong_together_fail_the_batch(messages: list[FrozenRows | None], said: str) -> None:
    with pytest.raises(FencepostError, match=said):
        writer_of({"value": "string"}, topic="t").commit(messages, 7)


@pytest.mark.parametrize(
    ("here", "in_the_record", "warns"), [("o", "o", False), ("o", "", True), ("", "o", True), ("", "", True)]
)
def test_a_batch_that_is_skipped_by_its_number_alone_is_warned_of(
    here: str, in_the_record: str, warns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PIPE-4: also if it is the record that has no offsets."""
    monkeypatch.setattr(writer, "checkpoint_hash", lambda _checkpoint, _batch: here)
    monkeypatch.setattr(Runner, "carry_out", skipping(in_the_record))
    message = FrozenRows("q", RUN, 7, 0, ())
    writer_of({"value": "string"}, topic="t", checkpointLocation="/c").commit([message], 7)
    assert ("skipped by its number alone" in caplog.text) == warns


def test_a_job_that_was_written_before_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no report to look at, and inside foreachBatch all batches after the first would be skipped."""
    monkeypatch.setattr(Runner, "carry_out", skipping(""))
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "job": "j"}
    found = batch_writer(options, StructType().add("value", "string"), overwrite=False)
    found.commit([FrozenRows("", "", 0, 0, ())])
    assert "job j was written before" in caplog.text
    assert "sink reset job.j" in caplog.text


def skipping(in_the_record: str) -> Any:
    def carry_out(_self: Runner, _work: object, _query: str, batch: int, origin: Origin) -> BatchOutcome:
        return BatchOutcome(batch, True, 0, Identity(Pid(1), Epoch(1)), bool(origin.offsets and in_the_record))

    return carry_out
