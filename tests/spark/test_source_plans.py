"""Which offsets a stream plans to read, where topics come, go, are cut, or are recreated (PIPE-1). Without a JVM."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import fencepost
from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.ranges import DataLost, Range, fetch
from fencepost.errors import ConfigError, FencepostError, ServerError
from fencepost.kernel import decode_batch
from fencepost.spark import offsets
from fencepost.spark.options import parse_source
from fencepost.spark.source import RememberingStreamReader, StreamReader
from tests.spark.test_source import NOW, fill

pytestmark = pytest.mark.integration


def reader(servers: str, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
    parsed = parse_source({key.lower(): value for key, value in given.items()}, streaming=True)
    return StreamReader(dataclasses.replace(parsed, columns=("value",)))


def remembering(servers: str, **options: str) -> RememberingStreamReader:
    """The reader for Spark 4.0 and 4.1. `make matrix` runs it there; here a test makes their calls in their order."""
    given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
    return RememberingStreamReader(parse_source({key.lower(): value for key, value in given.items()}, streaming=True))


def place(stored: dict[str, Any]) -> dict[str, dict[int, int]]:
    """The offsets of an end, without its notes."""
    return offsets.by_topic(offsets.from_json(stored))


def began(end: dict[str, Any]) -> dict[str, dict[int, int]]:
    """Where a micro-batch with this end begins."""
    return offsets.by_topic(offsets.began(end))


def planned(source: StreamReader | RememberingStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    return [str(part.wanted) for part in source.partitions(start, end)]


def rows(source: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The values that the tasks of a micro-batch read."""
    found = [batch for part in source.partitions(start, end) for batch in source.read(part)]
    return sorted(int(value) for batch in found for value in batch.column("value").to_pylist())


def test_a_spark_that_names_no_start_has_limits_too(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    source = remembering(servers, subscribe=name, maxOffsetsPerTrigger="40")
    at = source.latestOffset()  # a new query asks for the end first
    assert place(at) == place(source.initialOffset()) == {name: {0: 0}}
    fill(servers, name, range(100), partitions=1)
    read: list[str] = []

    def batches(reading: RememberingStreamReader, start: dict[str, Any]) -> dict[str, Any]:
        while (end := reading.latestOffset()) != start:
            assert reading.latestOffset() == end  # asked twice, it says the same
            read.extend(planned(reading, start, end))
            start = end
        return start

    assert planned(source, source.initialOffset(), at) == []
    at = batches(source, at)
    source.stop()
    assert read == [f"{name}-0 [0, 40)", f"{name}-0 [40, 80)", f"{name}-0 [80, 100)"]
    fill(servers, name, range(50), partitions=1)
    resumed = remembering(servers, subscribe=name, maxOffsetsPerTrigger="40")
    assert resumed.partitions(at, at) == []  # what Spark calls first when a query goes on
    assert place(batches(resumed, at)) == {name: {0: 150}}
    assert read[3:] == [f"{name}-0 [100, 140)", f"{name}-0 [140, 150)"]
    resumed.stop()
    # A Spark that goes on without that call must not go back to the beginning.
    lost = remembering(servers, subscribe=name, maxOffsetsPerTrigger="40")
    with pytest.raises(FencepostError, match="this Spark did not say so before"):
        lost.partitions(at, lost.latestOffset())
    lost.stop()


LATER = str(NOW + 1_000_000)
STARTS = {
    "latest": {"startingOffsets": "latest"},
    "latest, limited": {"startingOffsets": "latest", "maxOffsetsPerTrigger": "100"},
    "earliest": {"startingOffsets": "earliest"},
    "a time": {"startingTimestamp": str(NOW + 3)},
    "a time without a record": {"startingTimestamp": LATER, "startingOffsetsByTimestampStrategy": "latest"},
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("older", [False, True], ids=["Spark 4.2", "Spark 4.0"])
def test_a_first_micro_batch_that_crashed_is_repeated_with_the_same_rows(
    servers: str, name: str, start: str, older: bool
) -> None:
    """PIPE-4. Spark keeps the end of the first micro-batch, not its start, and asks for the start again after a crash.
    By then there are new records, also with the time that had none."""
    options = {"subscribe": name, **STARTS[start]}
    with Admin(servers) as admin:
        admin.create_topic(name, 2)

    def started() -> StreamReader | RememberingStreamReader:
        return remembering(servers, **options) if older else reader(servers, **options)

    def end_of(source: StreamReader | RememberingStreamReader, begin: dict[str, Any]) -> dict[str, Any]:
        if isinstance(source, RememberingStreamReader):
            return source.latestOffset()
        return source.latestOffset(begin, source.getDefaultReadLimit())

    fill(servers, name, range(10), partitions=2)
    source = started()
    begin = source.initialOffset()
    fill(servers, name, range(10), partitions=2)
    end = end_of(source, begin)
    assert place(end) == {name: {0: 10, 1: 10}}
    ranges = planned(source, begin, end)
    assert ranges == [f"{name}-{partition} [{at}, 10)" for partition, at in place(begin)[name].items()]
    assert ranges == planned(source, begin, end)  # Spark may plan a batch twice
    assert end_of(source, end) == end  # nothing new: the same, as text
    source.stop()
    for number in range(2):
        fill(servers, name, range(1_000_000, 1_000_000 + 10 * number), partitions=2)
        again = started()
        assert planned(again, end, end) == []  # what Spark 4.0 and 4.1 call first
        begin = again.initialOffset()
        assert planned(again, begin, end) == ranges
        onward = end_of(again, end)
        assert place(onward) == {name: {0: 10 + 5 * number, 1: 10 + 5 * number}}
        assert "began" not in onward[name] or onward == end
        again.stop()


@pytest.mark.parametrize("start", ["offsets", "a time"])
def test_a_crashed_first_micro_batch_is_repeated_although_its_start_is_gone(ours: str, name: str, start: str) -> None:
    """PIPE-4. The topic got a partition since, which the options say nothing about. A new query is refused."""
    given = {"offsets": {"startingOffsets": f'{{"{name}": {{"0": 3}}}}'}, "a time": {"startingTimestamp": str(NOW + 3)}}
    options = {"subscribe": name, **given[start]}
    with Admin(ours) as admin:
        admin.create_topic(name, 1)
        fill(ours, name, range(10), partitions=1)
        source = reader(ours, **options)
        end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
        admin.create_partitions(name, 2)
    for again in (reader(ours, **options), remembering(ours, **options)):
        assert planned(again, again.initialOffset(), end) == [f"{name}-0 [3, 10)"]
        again.stop()
    new, older = reader(ours, **options), remembering(ours, **options)
    refused = "must name all partitions" if start == "offsets" else "no record at or after"
    with pytest.raises(ConfigError, match=refused):
        new.latestOffset(new.initialOffset(), ReadAllAvailable())
    with pytest.raises(ConfigError, match=refused):
        older.latestOffset()
    with pytest.raises(ConfigError, match=refused):  # the end of an earlier version
        new.partitions(new.initialOffset(), {name: {"0": 10}})
    for each in (source, new, older):
        each.stop()


def test_records_lost_from_a_crashed_micro_batch_stop_the_stream(servers: str, name: str) -> None:
    """Retention deletes a part of it while the query is down. So with a partition that came later."""
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
        fill(servers, name, range(100), partitions=1)
        source = reader(servers, subscribe=name)
        first = source.latestOffset(source.initialOffset(), ReadAllAvailable())
        admin.create_partitions(name, 2)
        for _ in range(2):
            fill(servers, name, range(100), partitions=2)
        second = source.latestOffset(first, ReadAllAvailable())
        assert (began(first), began(second)) == ({name: {0: 0}}, {name: {1: 0}})
        admin.delete_records(name, {0: 60, 1: 70})
        strict, lenient = reader(servers, subscribe=name), reader(servers, subscribe=name, failOnDataLoss="false")
        for again in (strict, lenient):
            assert place(again.initialOffset()) == {name: {0: 60, 1: 70}}
        lost = r"resumes at offset 0, but the log starts at 60 now"
        with pytest.raises(DataLost, match=lost):
            strict.partitions(strict.initialOffset(), first)
        with pytest.raises(DataLost, match=r"resumes at offset 0, but the log starts at 70 now"):
            strict.partitions(first, second)
        assert planned(lenient, lenient.initialOffset(), first) == [f"{name}-0 [60, 100)"]
        assert planned(lenient, first, second) == [f"{name}-0 [100, 200)", f"{name}-1 [70, 100)"]
        # A partition that has lost its first records before the stream saw it, as Spark's source judges it.
        with pytest.raises(DataLost, match=f"{name}-1 is new to the stream, but its log starts at 70"):
            strict.latestOffset(first, ReadAllAvailable())
        assert began(lenient.latestOffset(first, ReadAllAvailable())) == {name: {1: 70}}
        for each in (source, strict, lenient):
            each.stop()


def test_a_checkpoint_of_an_earlier_version_is_continued(servers: str, name: str) -> None:
    """Its ends have no notes. The first micro-batch of a stream from `latest` was empty there."""
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    fill(servers, name, range(10), partitions=1)
    for source in (reader(servers, subscribe=name, startingOffsets="latest"), remembering(servers, subscribe=name)):
        held, end = {name: {"0": 5}}, {name: {"0": 8}}
        assert planned(source, source.initialOffset(), held) == (
            [] if isinstance(source, StreamReader) else [f"{name}-0 [0, 5)"]
        )
        assert planned(source, held, end) == [f"{name}-0 [5, 8)"]
        limit = () if isinstance(source, RememberingStreamReader) else (end, ReadAllAvailable())
        onward = source.latestOffset(*limit)
        assert place(onward) == {name: {0: 10}}
        assert list(offsets.ids(onward)) == [name]
        assert planned(source, end, onward) == [f"{name}-0 [8, 10)"]
        source.stop()
    idle = reader(servers, subscribe=name)
    assert idle.latestOffset({name: {"0": 10}}, ReadAllAvailable()) == {name: {"0": 10}}  # no micro-batch for the notes
    idle.stop()


def test_a_stream_goes_on_if_its_first_batch_is_never_planned(servers: str, name: str) -> None:
    """As with a function of foreachBatch that ignores a micro-batch: Spark does not ask which partitions it has."""
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    options = {"subscribe": name, "startingOffsets": "latest"}
    newer, older = reader(servers, **options), remembering(servers, **options)
    limited = remembering(servers, **options, maxOffsetsPerTrigger="2")
    first = newer.latestOffset(newer.initialOffset(), ReadAllAvailable())
    assert first == older.latestOffset() == limited.latestOffset()
    assert place(first) == began(first) == {name: {0: 0}}
    fill(servers, name, range(5), partitions=1)
    onward = newer.latestOffset(first, ReadAllAvailable())
    assert place(onward) == place(older.latestOffset()) == {name: {0: 5}}
    assert planned(newer, first, onward) == planned(older, first, older.latestOffset()) == [f"{name}-0 [0, 5)"]
    assert place(limited.latestOffset()) == {name: {0: 2}}
    newer.stop()
    older.stop()
    limited.stop()


def test_a_stream_that_waits_for_more_offsets_notes_where_it_began(servers: str, name: str) -> None:
    """Spark runs the first micro-batch although it has too few offsets: it is empty then."""
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    fill(servers, name, range(5), partitions=1)
    source = reader(servers, subscribe=name, minOffsetsPerTrigger="10")
    first = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    assert place(first) == began(first) == {name: {0: 0}}
    assert source.latestOffset(first, source.getDefaultReadLimit()) == first
    assert place(source.latestOffset(first, ReadAllAvailable())) == {name: {0: 5}}  # trigger(once=True) does not wait
    fill(servers, name, range(5), partitions=1)
    assert place(source.latestOffset(first, source.getDefaultReadLimit())) == {name: {0: 10}}
    source.stop()


def test_a_deleted_topic_stops_a_stream_of_a_pattern_unless_it_may_go_on(servers: str, name: str) -> None:
    """PIPE-1: nobody else would ever say that its last records were not read."""
    topics = [f"{name}-a", f"{name}-b"]
    pattern = {"subscribePattern": f"^{name}-.$"}
    strict, lenient = reader(servers, **pattern), reader(servers, **pattern, failOnDataLoss="false")
    older = remembering(servers, **pattern)
    with Admin(servers) as admin:
        for topic in topics:
            admin.create_topic(topic, 1)
            fill(servers, topic, range(10), partitions=1)
        end = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
        assert planned(older, end, end) == []
        admin.delete_topic(topics[1])
        await_deleted(admin, topics[1])
    gone = f"{topics[1]} was deleted"
    with pytest.raises(DataLost, match=gone):
        strict.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLost, match=gone):
        older.latestOffset()
    assert place(lenient.latestOffset(end, ReadAllAvailable())) == {topics[0]: {0: 10}}
    for each in (strict, lenient, older):
        each.stop()


def await_deleted(admin: Admin, topic: str) -> None:
    """Apache Kafka answers before a deletion is through."""
    deadline = time.monotonic() + 60
    while topic in {found.name for found in admin.topics()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_recreated_topic_that_is_shorter_stops_a_stream_unless_it_may_go_on(servers: str, name: str) -> None:
    """Also where the checkpoint does not name the topic's id."""
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    fill(servers, name, range(10), partitions=1)
    everything = ReadAllAvailable()
    strict, lenient = reader(servers, subscribe=name), reader(servers, subscribe=name, failOnDataLoss="false")
    behind = {name: {"0": 1_000}}
    with pytest.raises(DataLost, match="the log ends at 10: was the topic recreated"):
        strict.latestOffset(behind, everything)
    assert place(lenient.latestOffset(behind, everything)) == {name: {0: 10}}
    assert list(lenient.partitions(behind, {name: {"0": 10}})) == []
    # Only the last stable offset lies before it: an open transaction holds it up, and nothing is lost.
    held_up = Producer({"bootstrap.servers": servers, "transactional.id": name})
    held_up.init_transactions(30)
    held_up.begin_transaction()
    for number in (10, 11):
        held_up.produce(name, b"%d" % number, partition=0, timestamp=NOW + number)
    held_up.flush(30)
    assert place(strict.latestOffset({name: {"0": 11}}, everything)) == {name: {0: 11}}
    begins = {"startingTimestamp": str(NOW + 11), "startingOffsetsByTimestampStrategy": "latest"}
    by_time = reader(servers, subscribe=name, **begins)
    assert place(by_time.initialOffset()) == {name: {0: 10}}  # not behind what a stream may read to
    held_up.abort_transaction(30)
    for each in (strict, lenient, by_time):
        each.stop()


def test_a_recreated_topic_that_is_longer_stops_a_stream_unless_it_may_go_on(servers: str, name: str) -> None:
    """PIPE-1: by the topic's id in the checkpoint. Where records may be lost, the new topic is read from its start."""
    everything, other = ReadAllAvailable(), f"{name}-other"
    with Admin(servers) as admin:
        for topic in (name, other):
            admin.create_topic(topic, 1)
            fill(servers, topic, range(10), partitions=1)
        subscribed = {"subscribe": f"{name},{other}"}
        source = reader(servers, **subscribed)
        begin = source.initialOffset()
        end = source.latestOffset(begin, everything)
        (task, _) = source.partitions(begin, end)
        fill(servers, name, range(10), partitions=1)
        later = source.latestOffset(end, everything)
        strict, lenient = reader(servers, **subscribed), reader(servers, **subscribed, failOnDataLoss="false")
        now_ending = reader(servers, **subscribed, failOnDataLoss="false")
        now_ending.prepareForTriggerAvailableNow()
        admin.delete_topic(name)
        admin.create_topic(name, 1)
        fill(servers, name, range(100, 150), partitions=1)
        recreated = f"{name} was deleted and recreated"
        with pytest.raises(DataLost, match=recreated):
            strict.latestOffset(end, everything)
        with pytest.raises(DataLost, match=recreated):
            strict.partitions(end, later)  # planned before, and crashed
        with pytest.raises(DataLost, match=recreated):
            strict.partitions(strict.initialOffset(), end)  # so was the first micro-batch
        with pytest.raises(DataLost, match=recreated):
            list(source.read(task))  # planned before, and read after
        assert list(lenient.read(task)) == []
        assert rows(lenient, end, later) == []
        onward = lenient.latestOffset(later, everything)
        assert place(onward) == {name: {0: 50}, other: {0: 10}}
        assert rows(lenient, later, onward) == list(range(100, 150))
        assert lenient.latestOffset(onward, everything) == onward
        # The end of availableNow was fixed before: the new topic is left to the next start.
        assert now_ending.latestOffset(later, everything) == later
        for each in (source, strict, lenient, now_ending):
            each.stop()


def test_a_stream_goes_on_in_another_cluster_to_which_its_topic_was_moved(ours: str, name: str) -> None:
    """As after `fencepost migrate`, which keeps the offsets: the same name there is not a recreated topic."""
    with fencepost.Server() as target:
        for address in (ours, target.address):
            with Admin(address) as admin:
                admin.create_topic(name, 1)
            fill(address, name, range(10), partitions=1)
        before, after = reader(ours, subscribe=name), reader(target.address, subscribe=name)
        end = before.latestOffset(before.initialOffset(), ReadAllAvailable())
        assert after.latestOffset(end, ReadAllAvailable()) == end
        fill(target.address, name, range(10, 20), partitions=1)
        onward = after.latestOffset(end, ReadAllAvailable())
        assert rows(after, end, onward) == list(range(10, 20))
        assert offsets.ids(end) != offsets.ids(onward)
        before.stop()
        after.stop()


def test_a_limit_counts_a_topic_that_came_later_from_its_first_record(servers: str, name: str) -> None:
    """Its first records may be gone; counted from 0, a stream would end before them for ever."""
    first, later = f"{name}-a", f"{name}-b"
    with Admin(servers) as admin:
        for topic in (first, later):
            admin.create_topic(topic, 1)
            fill(servers, topic, range(50), partitions=1)
        admin.delete_records(later, {0: 40})
    source = reader(servers, subscribePattern=f"{name}-.*", failOnDataLoss="false")
    end = source.latestOffset({first: {"0": 48}}, ReadMaxRows(6))
    assert place(end) == {first: {0: 49}, later: {0: 45}}
    assert [str(part.wanted) for part in source.partitions({first: {"0": 48}}, end)] == [
        f"{first}-0 [48, 49)",
        f"{later}-0 [40, 45)",
    ]
    source.stop()


def test_a_pattern_does_not_match_what_sinks_and_owners_keep(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
        for kept in ("sink", "own"):
            admin.create_topic(f"__fencepost_{kept}.{name}", 1)
    source = reader(servers, subscribePattern=f".*{name}")
    assert list(source.initialOffset()) == [name]
    source.stop()


def test_what_is_left_of_a_range_is_read_where_records_may_be_lost(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
        fill(servers, name, range(100), partitions=1)
        admin.delete_records(name, {0: 60})

    def read(start: int, stop: int) -> list[int]:
        wanted = Range(name, 0, start, stop)
        with Routes(ClientSettings.of(servers)) as routes:
            fetched = [batch for found in fetch(routes, wanted, fail_on_data_loss=False) for batch in found]
        return [record.offset for batch in fetched for record in decode_batch(batch.data) if record.offset < stop]

    assert read(0, 90) == list(range(50, 90))  # whole batches: the one in which the log begins has a few more
    assert read(10, 50) == []
    assert read(500, 600) == []  # behind the end: of another topic
    with pytest.raises(DataLost), Routes(ClientSettings.of(servers)) as routes:
        list(fetch(routes, Range(name, 0, 0, 90)))
    # A log that ends inside the range, which was there when it was planned.
    with Routes(ClientSettings.of(servers)) as routes:
        beyond = Range(name, 0, 95, 105)
        fetched = [batch for found in fetch(routes, beyond, fail_on_data_loss=False, patience=0.1) for batch in found]
        assert fetched[-1].header.next_offset == 100
        with pytest.raises(DataLost, match="the log ends at 100"):
            list(fetch(routes, beyond, patience=0.1))


def test_a_partition_that_was_never_there_is_no_reason_to_leave_out_the_others(ours: str, name: str) -> None:
    with Admin(ours) as admin:
        admin.create_topic(name, 2)
        fill(ours, name, range(10), partitions=2)
    assigned = f'{{"{name}": [0, 7]}}'
    lenient = reader(ours, assign=assigned, failOnDataLoss="false")
    assert place(lenient.latestOffset({}, ReadAllAvailable())) == {name: {0: 5}}
    strict = reader(ours, assign=assigned)
    with pytest.raises(ServerError):
        strict.latestOffset({}, ReadAllAvailable())
    lenient.stop()
    strict.stop()


def test_offsets_for_those_who_look_at_lag_never_end_a_stream(
    servers: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
        fill(servers, name, range(100), partitions=1)
        admin.delete_records(name, {0: 60})
        source = reader(servers, subscribe=name, commitGroup=name)
        source.commit({name: {"0": 50}})  # retention was faster than the batch
        assert [entry.committed for entry in admin.group_offsets(name)] == [50]
        with consuming(servers, name, group=name):
            source.commit({name: {"0": 100}})
        assert "could not commit" in caplog.text
    source.stop()


@contextmanager
def consuming(servers: str, topic: str, group: str) -> Iterator[None]:
    """Somebody else is a member of the group: it refuses offsets of who is not."""
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    try:
        yield
    finally:
        consumer.close()
