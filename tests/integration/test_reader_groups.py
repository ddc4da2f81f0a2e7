"""Readers that share topics as members of a group, on fencepost's server and on Apache Kafka."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost import Admin, AsyncReader, PartitionsLost, Producer, Reader, TooSlow, TopicRecreated
from fencepost.client.reader import ReadRecord
from fencepost.core.groups.membership import GroupProtocol
from fencepost.errors import ConfigError, ServerError, TimedOut
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.group_workers import PATIENCE, Worker, read_by, until, working
from tests.support.proxy import Proxy
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

PROTOCOLS: list[GroupProtocol] = ["consumer", "cooperative", "eager"]


def write(server: TestedServer, topic: str, count: int, partitions: int, first: int = 0) -> None:
    with Producer(server.address) as producer:
        for number in range(first, first + count):
            producer.send(topic, str(number), partition=number % partitions)


def polled(reader: Reader) -> list[ReadRecord]:
    try:
        return reader.poll(0.2) or []
    except TimedOut:
        return []


def poll_until(reader: Reader, count: int) -> list[ReadRecord]:
    found: list[ReadRecord] = []
    while len(found) < count:
        found += reader.poll(PATIENCE) or ()
    return found


@pytest.fixture
def wide(client: RawClient, name: str) -> str:
    client.create_topic(name, partitions=4)
    return name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_the_partitions_and_go_on_where_the_group_left_off(
    server: TestedServer, wide: str, protocol: GroupProtocol
) -> None:
    write(server, wide, 100, 4)
    with working(server.address, wide, wide, 2, group_protocol=protocol) as workers:
        until(lambda: len(read_by(workers)) == 100 and all(len(worker.share) == 2 for worker in workers))
        assert workers[0].share.isdisjoint(workers[1].share)
        workers.append(Worker(server.address, wide, wide, group_protocol=protocol))
        until(lambda: sorted(len(worker.share) for worker in workers) == [1, 1, 2])
        write(server, wide, 100, 4, first=100)
        until(lambda: len(read_by(workers)) == 200)
        gone = workers.pop(0)
        gone.stop()
        until(lambda: sum(len(worker.share) for worker in workers) == 4)
        write(server, wide, 100, 4, first=200)
        until(lambda: len(read_by([gone, *workers])) == 300)
        # A revocation lets its member commit first, so nothing is read twice.
        assert set(read_by([gone, *workers]).values()) == {1}
        assert not any(event == "lost" for worker in workers for event, _ in worker.events)
    with Reader(server.address, wide, group=wide, stop="latest") as reader:
        assert list(reader) == []


def test_a_group_starts_at_start_only_where_nothing_is_committed(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with Reader(server.address, wide, group=wide, start="latest") as reader:
        until(lambda: not polled(reader) and len(reader.positions) == 4)
        assert set(reader.positions.values()) == {10}
        reader.commit({TopicPartition(wide, 0): 4})
    with Reader(server.address, wide, group=wide, stop="latest") as reader:
        assert Counter(record.partition for record in reader) == {0: 6, 1: 10, 2: 10, 3: 10}


def test_close_commits_nothing_and_leaves(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with Reader(server.address, wide, group=wide, stop="latest") as reader:
        assert len(list(reader)) == 40
    with Admin(server.address) as admin:
        assert admin.describe_group(wide).members == ()
    with Reader(server.address, wide, group=wide, stop="latest") as reader:
        assert len(list(reader)) == 40
        reader.commit(wait=False)
    with Reader(server.address, wide, group=wide, stop="latest") as reader:
        assert list(reader) == []
        assert set(reader.committed().values()) == {10}
        assert set(reader.lag().values()) == {0}


def test_with_a_stop_a_member_ends_when_there_is_nothing_left_for_it(server: TestedServer, topic: str) -> None:
    write(server, topic, 10, 1)
    with working(server.address, topic, topic, 1) as workers:
        until(lambda: len(read_by(workers)) == 10)
        with Reader(server.address, topic, group=topic, stop="latest") as reader:
            records = list(reader)
        assert len({record.offset for record in [*records, *workers[0].seen]}) == 10


def test_given_partitions_it_reads_just_these_and_joins_nothing(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with Reader(server.address, TopicPartition(wide, 2), group=wide, stop="latest") as reader:
        assert {record.partition for record in reader} == {2}
        reader.commit()
        with Admin(server.address) as admin:
            assert admin.describe_group(wide).members == ()
    with pytest.raises(ConfigError, match="are for members of a group"):
        Reader(server.address, TopicPartition(wide, 2), group=wide, exclusive=True)


@pytest.mark.parametrize(("reset", "rest"), [("latest", 0), ("earliest", 10)])
def test_by_kafkas_names_given_partitions_go_on_where_the_group_left_off_too(
    server: TestedServer, wide: str, reset: str, rest: int
) -> None:
    """`auto.offset.reset` is for partitions of which nothing is committed."""
    write(server, wide, 40, 4)
    with Reader(server.address, TopicPartition(wide, 2), group=wide) as reader:
        reader.commit({TopicPartition(wide, 2): 7})
    config = {"bootstrap.servers": server.address, "group.id": wide, "auto.offset.reset": reset}
    both = [TopicPartition(wide, 2), TopicPartition(wide, 3)]
    with Reader.from_config(config, both, stop="latest") as reader:
        assert Counter(record.partition for record in reader) == +Counter({2: 3, 3: rest})


def test_positions_can_be_moved_and_partitions_paused(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    first, second = TopicPartition(wide, 0), TopicPartition(wide, 1)
    with Reader(server.address, wide, group=wide) as reader:
        assert len(poll_until(reader, 40)) == 40
        reader.pause(second)
        reader.seek(first, 7)
        reader.seek(second, "earliest")
        assert [record.offset for record in poll_until(reader, 3)] == [7, 8, 9]
        with pytest.raises(TimedOut):
            reader.poll(0.3)
        reader.resume(second)
        assert {record.partition for record in poll_until(reader, 10)} == {1}
        assert set(reader.positions.values()) == {10}
        reader.rewind()
        assert len(poll_until(reader, 40)) == 40
        with pytest.raises(ConfigError, match="is not read by this reader"):
            reader.seek((wide, 9), 0)


def test_a_partition_that_was_moved_by_hand_is_read_when_it_comes_back(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with Reader(server.address, wide, group=wide) as reader:
        poll_until(reader, 40)
        reader.commit()
        for partition in reader.assignment:
            reader.seek(partition, 10)
        with Reader(server.address, wide, group=wide) as other:
            until(lambda: not polled(reader) and not polled(other) and len(other.assignment) == 2)
        until(lambda: not polled(reader) and len(reader.assignment) == 4)
        write(server, wide, 40, 4, first=40)
        assert len(poll_until(reader, 40)) == 40


@pytest.mark.parametrize("exclusive", [False, True])
def test_on_assigned_that_raises_is_called_again_before_anything_is_read(
    server: TestedServer, wide: str, exclusive: bool
) -> None:
    calls: list[frozenset[TopicPartition]] = []

    def on_assigned(partitions: frozenset[TopicPartition]) -> None:
        calls.append(partitions)
        for partition in partitions:
            reader.seek(partition, 5)
        if len(calls) == 1:
            raise OSError("the files are not there yet")

    write(server, wide, 40, 4)
    with Reader(server.address, wide, group=wide, on_assigned=on_assigned, exclusive=exclusive) as reader:
        with pytest.raises(OSError, match="not there yet"):
            reader.poll(PATIENCE)
        assert {record.offset for record in poll_until(reader, 20)} == {5, 6, 7, 8, 9}
        assert calls == [reader.assignment, reader.assignment]


@pytest.mark.parametrize("protocol", ["consumer", "cooperative"])
def test_a_topic_that_is_created_again_is_read_from_its_beginning(
    server: TestedServer, wide: str, protocol: GroupProtocol
) -> None:
    write(server, wide, 40, 4)
    with Admin(server.address) as admin, Reader(server.address, wide, group=wide, group_protocol=protocol) as reader:
        poll_until(reader, 40)
        reader.commit()
        recreate(admin, wide)
        write(server, wide, 80, 4, first=40)
        assert sorted(int(record.value or b"") for record in poll_until(reader, 80)) == list(range(40, 120))


@pytest.mark.parametrize("protocol", ["consumer", "cooperative"])
def test_a_position_in_a_deleted_topic_is_not_committed_for_the_new_one_of_its_name(
    server: TestedServer, wide: str, protocol: GroupProtocol
) -> None:
    """The reader has not fetched since, so it cannot know: the first 40 records would be skipped."""
    write(server, wide, 40, 4)
    with Admin(server.address) as admin:
        with Reader(server.address, wide, group=wide, group_protocol=protocol) as reader:
            poll_until(reader, 40)
            recreate(admin, wide)
            reader.commit()
            assert all(each.committed is None for each in admin.group_offsets(wide))
        write(server, wide, 80, 4)
        with Reader(server.address, wide, group=wide, group_protocol=protocol) as reader:
            assert sorted(int(record.value or b"") for record in poll_until(reader, 80)) == list(range(80))


def test_a_reader_of_given_partitions_does_not_commit_for_a_new_topic_of_the_name(
    server: TestedServer, wide: str
) -> None:
    where = TopicPartition(wide, 0)
    write(server, wide, 40, 4)
    with Admin(server.address) as admin, Reader(server.address, where, group=wide) as reader:
        poll_until(reader, 10)
        recreate(admin, wide)
        with pytest.raises(TopicRecreated, match="so offset 10 of the old one means nothing"):
            reader.commit()
        assert all(each.committed is None for each in admin.group_offsets(wide))


def test_without_a_group_a_topic_that_is_created_again_is_an_error(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with Admin(server.address) as admin, Reader(server.address, wide) as reader:
        poll_until(reader, 40)
        recreate(admin, wide)
        write(server, wide, 80, 4)
        with pytest.raises(ServerError, match="was deleted and created again, so offset 10 of the old one"):
            reader.poll(PATIENCE)


def recreate(admin: Admin, topic: str) -> None:
    admin.delete_topic(topic)
    until(lambda: all(each.name != topic for each in admin.topics()))
    admin.create_topic(topic, 4)


def test_a_partition_whose_position_was_deleted_stops_alone_and_can_be_moved(server: TestedServer, wide: str) -> None:
    gone, other = TopicPartition(wide, 0), TopicPartition(wide, 1)
    write(server, wide, 40, 4)
    with Admin(server.address) as admin, Reader(server.address, wide, group=wide) as reader:
        poll_until(reader, 40)
        admin.delete_records(wide, {0: 5})
        reader.seek(gone, 2)
        with pytest.raises(ServerError, match=f"{gone} has no offset 2"):
            reader.poll(PATIENCE)
        reader.pause(gone)
        reader.seek(other, 9)
        assert [record.offset for record in poll_until(reader, 1)] == [9]
        reader.resume(gone)
        with pytest.raises(ServerError, match=f"{gone} has no offset 2"):
            reader.poll(PATIENCE)
        reader.seek(gone, "earliest")
        assert [record.offset for record in poll_until(reader, 5)] == [5, 6, 7, 8, 9]


def test_a_loop_over_records_stops_for_a_revocation_and_commits_what_was_done(server: TestedServer, wide: str) -> None:
    write(server, wide, 400, 4)
    done: list[ReadRecord] = []
    with ExitStack() as stack:
        reader = stack.enter_context(
            Reader(server.address, wide, group=wide, stop="latest", on_revoked=lambda partitions: reader.commit())
        )
        others: list[Worker] = []
        for record in reader:
            done.append(record)
            if len(done) == 30:
                others.append(Worker(server.address, wide, wide))
                stack.callback(others[0].stop)
                member = reader._member
                assert member is not None
                until(lambda: member.needs_program)  # noqa: B023 - called here and now
        until(lambda: len(done) + len(others[0].seen) >= 400)
        everything = Counter((record.partition, record.offset) for record in [*done, *others[0].seen])
        assert len(everything) == 400
        assert set(everything.values()) == {1}


def test_partitions_and_topics_that_appear_later_are_read(server: TestedServer, client: RawClient, name: str) -> None:
    client.create_topic(f"{name}-a", partitions=1)
    how: dict[str, Any] = {"metadata_max_age": 0.2}
    pattern = re.compile(re.escape(name) + "-.")
    with (
        Reader(server.address, f"{name}-a", **how) as alone,
        Reader(server.address, pattern, **how) as alone_by_pattern,
        working(server.address, f"{name}-a", f"{name}-names", 1, **how) as by_name,
        working(server.address, pattern, f"{name}-patterns", 1, group_protocol="cooperative", **how) as by_pattern,
        Admin(server.address) as admin,
    ):
        until(lambda: by_name[0].share and by_pattern[0].share)
        admin.create_partitions(f"{name}-a", 3)
        client.create_topic(f"{name}-b", partitions=2)
        write(server, f"{name}-a", 30, 3)
        write(server, f"{name}-b", 20, 2, first=100)
        assert {int(record.value or b"") for record in poll_until(alone, 30)} == set(range(30))
        both = {*range(30), *range(100, 120)}
        assert {int(record.value or b"") for record in poll_until(alone_by_pattern, 50)} == both
        until(lambda: set(read_by(by_name)) == set(range(30)))
        until(lambda: set(read_by(by_pattern)) == both)


@pytest.mark.parametrize("protocol", ["consumer", "cooperative"])
def test_a_slow_program_is_told_and_commits_nothing_for_others(
    server: TestedServer, wide: str, protocol: GroupProtocol
) -> None:
    write(server, wide, 40, 4)
    lost: list[frozenset[TopicPartition]] = []
    with Reader(
        server.address, wide, group=wide, processing_timeout=1.0, group_protocol=protocol, on_lost=lost.append
    ) as slow:
        taken = slow.poll(PATIENCE)
        assert taken
        with working(server.address, wide, wide, 1, group_protocol=protocol) as workers:
            until(lambda: len(read_by(workers)) == 40)  # it has left, so the other one reads all of it
            with pytest.raises(TooSlow, match="processing_timeout=1 s"):
                slow.commit()
            with pytest.raises(TooSlow):
                slow.poll(PATIENCE)
            assert [len(partitions) for partitions in lost] == [4]
            with pytest.raises(PartitionsLost):
                slow.commit({TopicPartition(wide, taken[0].partition): 1})
            until(lambda: not polled(slow) and slow.assignment)  # it is a member again
        with Admin(server.address) as admin:
            assert all(each.committed == 10 for each in admin.group_offsets(wide))


def test_heartbeats_do_not_depend_on_the_program(server: TestedServer, wide: str) -> None:
    """A classic session of six seconds outlives a program that works for seven."""
    write(server, wide, 40, 4)
    with Reader(server.address, wide, group=wide, group_protocol="cooperative", session_timeout=6.0) as reader:
        assert poll_until(reader, 40)
        threading.Event().wait(7.0)
        reader.commit()
        assert set(reader.committed().values()) == {10}


def test_a_member_that_hears_nothing_hands_out_nothing_once_its_session_may_be_over(
    server: TestedServer, wide: str
) -> None:
    write(server, wide, 4000, 4)
    options: dict[str, Any] = {"group_protocol": "cooperative", "session_timeout": 6.0}
    with Proxy(server.address) as proxy, Reader(proxy.address, wide, group=wide, **options) as reader:
        records = iter(reader)
        next(records)
        member, pause = reader._member, threading.Event()
        assert member is not None
        proxy.silence()
        with working(server.address, wide, wide, 1, **options) as workers:
            while member.may_go_on():  # the chunk at hand is long enough
                assert not workers[0].seen
                next(records)
                pause.wait(0.01)
            until(lambda: workers[0].seen)
            assert not member.may_go_on()
            proxy.silence(False)
            with pytest.raises(PartitionsLost):
                reader.commit()


def test_a_static_member_gets_its_partitions_back(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with working(server.address, wide, wide, 1) as workers:
        with Reader(server.address, wide, group=wide, member="b") as reader:
            until(lambda: not polled(reader) and len(reader.assignment) == len(workers[0].share) == 2)
            before, events = reader.assignment, len(workers[0].events)
        with Reader(server.address, wide, group=wide, member="b") as reader:
            until(lambda: polled(reader) or reader.assignment)
            assert reader.assignment == before
        assert len(workers[0].events) == events


def test_a_second_process_with_the_same_name_is_named(server: TestedServer, wide: str) -> None:
    options: Any = {"group": wide, "member": "worker-1", "group_protocol": "cooperative"}
    with Reader(server.address, wide, **options) as older:
        until(lambda: not polled(older) and len(older.assignment) == 4)
        with Reader(server.address, wide, **options) as newer:
            until(lambda: not polled(newer) and len(newer.assignment) == 4)
            with pytest.raises(ServerError, match="member='worker-1': another process uses this name"):
                until(lambda: bool(polled(older)))


async def test_arrow_and_asyncio_in_a_group(server: TestedServer, wide: str) -> None:
    write(server, wide, 40, 4)
    with Reader(server.address, wide, group=f"{wide}-arrow", stop="latest") as blocking:
        assert sum(batch.num_rows for batch in blocking.arrow()) == 40
        blocking.commit()
        assert set(blocking.committed().values()) == {10}
    events: list[str] = []
    readers: list[AsyncReader] = []

    async def revoked(partitions: frozenset[TopicPartition]) -> None:
        events.append("revoked")
        await readers[0].commit()
        events.append("committed")

    how: dict[str, Any] = {
        "on_assigned": lambda partitions: events.append("assigned"),
        "on_revoked": revoked,
    }
    async with AsyncReader(server.address, wide, group=wide, **how) as reader:
        readers.append(reader)
        found = [await anext(reader) for _ in range(40)]
        assert len({(record.partition, record.offset) for record in found}) == 40
        with working(server.address, wide, wide, 1) as workers:
            while "committed" not in events:
                with pytest.raises(TimedOut):
                    await reader.poll(0.1)
            while len(workers[0].share) < 2:
                await asyncio.sleep(0.02)
        assert events[0] == "assigned"
        assert len(reader.assignment) >= 2
        assert await reader.committed()
