"""Record batches through a stage topic, without Spark (PIPE-2)."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from pyspark.sql.types import StructType

from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import Target
from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX, Staged, clear_stage, ends_of, open_stage
from fencepost.client.read import ranges
from fencepost.client.read.ranges import Range, fetch
from fencepost.core.micro_batch.protocol import ContentLost, Replaced
from fencepost.kernel import decode_batch, encode_batch, read_header
from fencepost.spark.freeze import FrozenBatch, ManifestEntry, compare
from fencepost.spark.stage import StageWriter, carried, contents
from fencepost.spark.writer import FrozenRows, batch_writer, stream_writer
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.committed import committed_values

pytestmark = pytest.mark.integration

LARGEST = 200_000
TARGETS = (Target("a", 3, LARGEST, compacted=False), Target("b", 1, 1_000, compacted=False))


def frozen(number: int, size: int) -> FrozenBatch:
    """A batch of exactly so many bytes."""
    value = random.Random(number).randbytes(size)
    while len(batch := encode_batch([(None, value, 7, None)])) > size:
        value = value[: len(value) - (len(batch) - size)]
    where = TopicPartition("a", number % 3) if size > 1_000 else TopicPartition("b", 0)
    return FrozenBatch(where, ManifestEntry(7, number, 1, len(batch), read_header(batch).crc), batch)


def staged(server: TestedServer, name: str, given: list[FrozenBatch]) -> tuple[FrozenBatch, ...]:
    settings = ClientSettings.of(server.address)
    return carried(iter(given), 0, lambda: StageWriter.open(settings, name, TARGETS, retention=3600.0, patience=30.0))


def test_every_batch_up_to_the_targets_limit_is_staged_and_comes_back(server: TestedServer, name: str) -> None:
    sizes = [LARGEST, 100, 90_000, 110_000, 99_000, 99_000, 100, 100, LARGEST - 1, 150_000] * 3
    given = [frozen(number, size) for number, size in enumerate(sizes)]
    found = staged(server, name, given)
    places = [each.content for each in found if isinstance(each.content, Staged)]
    assert len(places) == len(given)
    with Admin(server.address) as admin, Routes(ClientSettings.of(server.address)) as routes:
        assert len(admin.describe_topic(STAGE_TOPIC_PREFIX + name).partitions) == 4
        read = contents(routes, STAGE_TOPIC_PREFIX + name, found)
        for batch, (_, entry, _), content in zip(given, found, read, strict=True):
            compare(batch.where, entry, entry, content)
            assert content == batch.payload
        clear_stage(admin, name, ends_of(places))
        assert admin.earliest(STAGE_TOPIC_PREFIX + name) == admin.latest(STAGE_TOPIC_PREFIX + name)


def test_the_commit_fetches_little_more_than_what_it_reads_from_the_stage(server: TestedServer, name: str) -> None:
    """Each value is fetched with the batch of the stage that it is in, so many must not share a large one."""
    given = [frozen(number, 70_000 if number % 3 else 900) for number in range(60)]
    staged(server, name, given)
    with Admin(server.address) as admin, Routes(ClientSettings.of(server.address)) as routes:
        fetched = 0
        for partition, end in admin.latest(STAGE_TOPIC_PREFIX + name).items():
            for batches in fetch(routes, Range(STAGE_TOPIC_PREFIX + name, partition, 0, end)):
                fetched += sum(batch.header.size * batch.header.count for batch in batches)
    assert fetched < 1.5 * sum(batch.entry.size for batch in given)


def test_a_segment_of_the_stage_has_room_for_the_largest_batch(server: TestedServer, name: str) -> None:
    """Apache Kafka refuses a batch that is larger than a segment."""
    largest = 66 << 20
    targets = (Target("a", 3, largest, compacted=False),)
    settings = ClientSettings.of(server.address)
    batch = frozen(0, largest - 100)
    with StageWriter.open(settings, name, targets, retention=3600.0, patience=30.0) as stage:
        stage.put(batch)
        (found,) = stage.finish()
    assert isinstance(found.content, Staged)
    with Routes(settings) as routes:
        assert list(contents(routes, STAGE_TOPIC_PREFIX + name, [found])) == [batch.payload]


@pytest.mark.parametrize("largest", [2**31 - 1, 2**31 - 100])
def test_a_stage_can_be_as_wide_as_any_target(server: TestedServer, name: str, largest: int) -> None:
    with Admin(server.address) as admin:
        found = open_stage(admin, name, (Target("a", 1, largest, compacted=False),), 3600.0)
    assert found.max_bytes == 2**31 - 1


def test_a_task_does_not_hold_what_the_stage_has_not_taken_yet(server: TestedServer, name: str) -> None:
    """However large a record the target accepts."""
    batch = frozen(0, 4 << 20)
    targets = (Target("a", 3, 2**31 - 1, compacted=False),)
    with StageWriter.open(ClientSettings.of(server.address), name, targets, retention=3600.0, patience=30.0) as stage:
        held = []
        for _ in range(16):
            stage.put(batch)
            held.append(stage.producer.stats().bytes)
        assert len({each.content for each in stage.finish() if isinstance(each.content, Staged)}) == 16
    assert max(held) < 17 << 20


def test_a_batch_too_large_for_the_users_own_stage_travels_in_the_message(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(STAGE_TOPIC_PREFIX + name, 1, configs={"max.message.bytes": "100000"})
    given = [frozen(number, size) for number, size in enumerate([5_000, 99_990, 50_000, LARGEST, 40_000, 50_000])]
    found = staged(server, name, given)
    assert [isinstance(each.content, Staged) for each in found] == [True, False, True, False, True, True]
    with Routes(ClientSettings.of(server.address)) as routes:
        read = contents(routes, STAGE_TOPIC_PREFIX + name, found)
        assert list(read) == [batch.payload for batch in given]


VALUES = StructType().add("value", "binary")


def commit(server: TestedServer, target: str, name: str, run: int, batch: int, rows: tuple[FrozenBatch, ...]) -> None:
    """Commit a micro-batch of a query, as Spark does when its only task is done."""
    options = {"kafka.bootstrap.servers": server.address, "topic": target, "name": name}
    stream_writer(options, VALUES).commit([FrozenRows("query", str(uuid.UUID(int=run)), batch, 7, rows)], batch)


def test_a_job_deletes_its_stage_once_it_is_written(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin:
        admin.create_topic(name, 1)
        options = {"kafka.bootstrap.servers": server.address, "topic": name, "job": name}
        for _ in range(2):  # the second time it is skipped
            rows = rows_for(name, staged(server, f"job.{name}", [frozen(number, 900) for number in range(5)]))
            assert STAGE_TOPIC_PREFIX + f"job.{name}" in names(admin)
            batch_writer(options, VALUES, overwrite=False).commit([FrozenRows("", "", 0, 7, rows)])
            assert STAGE_TOPIC_PREFIX + f"job.{name}" not in names(admin)
            assert len(committed_values(server.address, name)) == 5


def test_two_drivers_with_one_stage_write_each_batch_once(server: TestedServer, name: str) -> None:
    """Both stage batch 0, one in between the other, and both commit it; the first one's commit clears the stage. Then
    the first one, which was replaced, is late with batch 1."""
    with Admin(server.address) as admin:
        admin.create_topic(name, 1)
    given = [frozen(number, 900) for number in range(30)]
    first: list[FrozenBatch] = []
    second: list[FrozenBatch] = []
    for number, batch in enumerate(given[:10]):
        (second if number % 2 else first).extend(rows_for(name, staged(server, name, [batch])))
    second += rows_for(name, staged(server, name, given[10:12]))
    commit(server, name, name, 1, 0, tuple(first))
    written = [decoded(given[number]) for number in range(0, 10, 2)]
    assert committed_values(server.address, name) == written
    commit(server, name, name, 2, 0, tuple(second))
    assert committed_values(server.address, name) == written
    late = rows_for(name, staged(server, name, given[12:14]))
    onward = rows_for(name, staged(server, name, given[14:20]))
    later = rows_for(name, staged(server, name, given[20:22]))
    for rows in (late, later):
        with pytest.raises(Replaced):
            commit(server, name, name, 1, 1, rows)
    commit(server, name, name, 2, 1, onward)
    written += [decoded(batch) for batch in given[14:20]]
    assert committed_values(server.address, name) == written
    # Rows that are gone fail their batch, which is not written.
    with pytest.raises(ContentLost, match="stageRetention"):
        commit(server, name, name, 2, 2, late)
    assert committed_values(server.address, name) == written
    commit(server, name, name, 3, 2, rows_for(name, staged(server, name, given[22:])))
    assert committed_values(server.address, name) == written + [decoded(batch) for batch in given[22:]]


def test_a_commit_reads_all_targets_over_few_connections(
    server: TestedServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: set[object] = set()
    send = ranges._Requests.send

    def counted(requests: ranges._Requests, *wanted: Any) -> None:
        send(requests, *wanted)
        if not requests._committed:  # single records, and not the sink's progress
            opened.update(requests._connections.values())

    monkeypatch.setattr(ranges._Requests, "send", counted)
    with Admin(server.address) as admin:
        admin.create_topic(name, 30)
    given = [frozen(number, 900) for number in range(60)]
    rows = staged(server, name, given)
    spread = [each._replace(where=TopicPartition(name, number % 30)) for number, each in enumerate(rows)]
    commit(server, name, name, 1, 0, tuple(spread))
    assert 1 <= len(opened) <= 4
    by_partition = [decoded(given[number]) for partition in range(30) for number in (partition, partition + 30)]
    assert committed_values(server.address, name) == by_partition


def names(admin: Admin) -> set[str]:
    return {topic.name for topic in admin.topics(internal=True)}


def rows_for(target: str, found: tuple[FrozenBatch, ...]) -> tuple[FrozenBatch, ...]:
    """What a task has staged, all for the only partition of the target."""
    return tuple(each._replace(where=TopicPartition(target, 0)) for each in found)


def decoded(batch: FrozenBatch) -> bytes:
    (record,) = decode_batch(batch.payload)
    assert record.value is not None
    return record.value
