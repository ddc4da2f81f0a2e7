"""Which offsets a stream plans to read, where topics come, go, are cut, or are made anew (PIPE-1). Without a JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.ranges import DataLost, Range, fetch
from fencepost.errors import FencepostError, ServerError
from fencepost.kernel import decode_batch
from fencepost.spark.source import RememberingStreamReader, StreamReader
from fencepost.spark.source_options import parse
from tests.spark.test_source import NOW, fill

pytestmark = pytest.mark.integration


def reader(servers: str, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
    return StreamReader(parse({key.lower(): value for key, value in given.items()}, streaming=True))


def remembering(servers: str, **options: str) -> RememberingStreamReader:
    """The reader for Spark 4.0 and 4.1. `make matrix` runs it there; here a test makes their calls in their order."""
    given = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", **options}
    return RememberingStreamReader(parse({key.lower(): value for key, value in given.items()}, streaming=True))


def test_a_spark_that_names_no_start_has_limits_too(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    source = remembering(servers, subscribe=name, maxOffsetsPerTrigger="40")
    at: dict[str, dict[str, int]] = source.latestOffset()  # a new query asks for the end first
    assert at == source.initialOffset() == {name: {"0": 0}}
    fill(servers, name, range(100), partitions=1)
    read: list[str] = []

    def batches(reading: RememberingStreamReader, start: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        while (end := reading.latestOffset()) != start:
            assert reading.latestOffset() == end  # asked twice, it says the same
            read.extend(str(part.wanted) for part in reading.partitions(start, end))
            start = end
        return start

    at = batches(source, at)
    source.stop()
    assert read == [f"{name}-0 [0, 40)", f"{name}-0 [40, 80)", f"{name}-0 [80, 100)"]
    fill(servers, name, range(50), partitions=1)
    resumed = remembering(servers, subscribe=name, maxOffsetsPerTrigger="40")
    assert resumed.partitions(at, at) == []  # what Spark calls first when a query goes on
    assert batches(resumed, at) == {name: {"0": 150}}
    assert read[3:] == [f"{name}-0 [100, 140)", f"{name}-0 [140, 150)"]
    resumed.stop()
    # A Spark that goes on without that call must not go back to the beginning.
    lost = remembering(servers, subscribe=name, maxOffsetsPerTrigger="40")
    with pytest.raises(FencepostError, match="this Spark did not say so before"):
        lost.partitions(at, lost.latestOffset())
    lost.stop()


def test_a_stream_from_the_end_loses_nothing_if_its_first_batch_crashes(servers: str, name: str) -> None:
    """Spark keeps the end of the first batch, not its start, and asks for the start again: twice in one run, and after
    a crash."""
    mixed = f'{{"{name}": {{"0": -1, "1": 3}}}}'
    with Admin(servers) as admin:
        admin.create_topic(name, 2)
    end = 5
    fill(servers, name, range(10), partitions=2)
    for starting, limit in (("latest", None), ("latest", "100"), (mixed, None)):
        options = {"subscribe": name, "startingOffsets": starting}
        options |= {} if limit is None else {"maxOffsetsPerTrigger": limit}

        def grow() -> None:
            nonlocal end
            fill(servers, name, range(10), partitions=2)
            end += 5

        def planned(source: StreamReader | RememberingStreamReader, start: object, stop: object) -> list[str]:
            return [str(part.wanted) for part in source.partitions(start, stop)]  # type: ignore[arg-type]

        # Spark 4.2 and newer: start, end, and the start again.
        source = reader(servers, **options)
        start = source.initialOffset()
        grow()
        began, stop = source.latestOffset(start, source.getDefaultReadLimit()), end
        grow()
        assert source.initialOffset() == start
        there = [] if starting == "latest" else [f"{name}-1 [3, {stop})"]
        assert began == {name: {"0": stop - 5, "1": stop if there else stop - 5}}
        for _ in range(2):  # Spark may plan a batch twice
            assert planned(source, start, began) == there
        onward = source.latestOffset(began, source.getDefaultReadLimit())
        assert onward == {name: {"0": end, "1": end}}
        source.stop()
        # It crashes before the first batch is committed.
        restarts: list[StreamReader | RememberingStreamReader]
        restarts = [reader(servers, **options), remembering(servers, **options)]
        for again in restarts:
            assert planned(again, began, began) == []
            restarted = again.initialOffset()
            assert planned(again, restarted, began) == there
            assert len(planned(again, began, onward)) == 2
            if isinstance(again, StreamReader):
                grow()
                assert again.latestOffset(restarted, again.getDefaultReadLimit()) == {name: {"0": end, "1": end}}
            with pytest.raises(DataLost, match="was the topic recreated"):  # checked as ever from here on
                again.partitions(restarted, {name: {"0": 1, "1": 1}})
            again.stop()
        # Spark 4.0 and 4.1: the end, then the start.
        older = remembering(servers, **options)
        stop = end
        began = older.latestOffset()
        grow()
        there = [] if starting == "latest" else [f"{name}-1 [3, {stop})"]
        assert began == {name: {"0": stop, "1": stop}}
        assert planned(older, older.initialOffset(), began) == there
        assert older.latestOffset() == {name: {"0": end, "1": end}}
        older.stop()


def test_a_stream_from_the_end_goes_on_if_its_first_batch_is_never_planned(servers: str, name: str) -> None:
    """As with a function of foreachBatch that ignores a micro-batch: Spark does not ask which partitions it has."""
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
    options = {"subscribe": name, "startingOffsets": "latest"}
    newer, older = reader(servers, **options), remembering(servers, **options)
    limited = remembering(servers, **options, maxOffsetsPerTrigger="2")
    start = newer.initialOffset()
    assert newer.latestOffset(start, ReadAllAvailable()) == older.latestOffset() == limited.latestOffset() == start
    fill(servers, name, range(5), partitions=1)
    assert newer.latestOffset(start, ReadAllAvailable()) == older.latestOffset() == {name: {"0": 5}}
    assert limited.latestOffset() == {name: {"0": 2}}
    newer.stop()
    older.stop()
    limited.stop()


def test_a_topic_that_was_made_anew_stops_a_stream_unless_it_may_go_on(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 1)
        fill(servers, name, range(10), partitions=1)
        everything = ReadAllAvailable()
        strict, lenient = reader(servers, subscribe=name), reader(servers, subscribe=name, failOnDataLoss="false")
        behind = {name: {"0": 1_000}}
        with pytest.raises(DataLost, match="the log ends at 10: was the topic recreated"):
            strict.latestOffset(behind, everything)
        assert lenient.latestOffset(behind, everything) == {name: {"0": 10}}
        assert list(lenient.partitions(behind, {name: {"0": 10}})) == []
        # Only the last stable offset lies before it: an open transaction holds it up, and nothing is lost.
        held_up = Producer({"bootstrap.servers": servers, "transactional.id": name})
        held_up.init_transactions(30)
        held_up.begin_transaction()
        for number in (10, 11):
            held_up.produce(name, b"%d" % number, partition=0, timestamp=NOW + number)
        held_up.flush(30)
        assert strict.latestOffset({name: {"0": 11}}, everything) == {name: {"0": 11}}
        begins = {"startingTimestamp": str(NOW + 11), "startingOffsetsByTimestampStrategy": "latest"}
        by_time = reader(servers, subscribe=name, **begins)
        assert by_time.initialOffset() == {name: {"0": 10}}  # not behind what a stream may read to
        held_up.abort_transaction(30)
        for each in (strict, lenient, by_time):
            each.stop()


def test_a_limit_counts_a_topic_that_came_later_from_its_first_record(servers: str, name: str) -> None:
    """Its first records may be gone; counted from 0, a stream would end before them for ever."""
    first, later = f"{name}-a", f"{name}-b"
    with Admin(servers) as admin:
        for topic in (first, later):
            admin.create_topic(topic, 1)
            fill(servers, topic, range(50), partitions=1)
        admin.delete_records(later, {0: 40})
    source = reader(servers, subscribePattern=f"{name}-.*")
    end = source.latestOffset({first: {"0": 48}}, ReadMaxRows(6))
    assert end == {first: {"0": 49}, later: {"0": 45}}
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
    assert lenient.latestOffset({}, ReadAllAvailable()) == {name: {"0": 5}}
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
