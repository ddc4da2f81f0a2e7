"""Groups in which fencepost's readers and other clients' consumers share a topic, on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fencepost
from fencepost.core.groups.membership import GroupProtocol
from tests.compat import test_groups_aiokafka, test_groups_confluent_kafka, test_groups_kafka_python
from tests.compat.test_groups_java import VerifiableConsumer
from tests.support.group_workers import Worker, read_by, until, working
from tests.support.raw import RawClient

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

PARTITIONS = 4


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def address(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("kafka" if request.param == "kafka" else "fencepost_server").address
    return found


@pytest.fixture
def wide(raw: RawClient, name: str) -> str:
    raw.create_topic(name, partitions=PARTITIONS)
    return name


def write(address: str, topic: str, first: int, count: int) -> None:
    with fencepost.Producer(address) as producer:
        for number in range(first, first + count):
            producer.send(topic, str(number), partition=number % PARTITIONS)


@contextmanager
def confluent(address: str, topic: str, **settings: Any) -> Iterator[test_groups_confluent_kafka.Reader]:
    reader = test_groups_confluent_kafka.Reader(address, topic, topic, **settings)
    try:
        yield reader
    finally:
        reader.stop()


def shares(workers: list[Worker]) -> list[int]:
    return sorted(each.partition for worker in workers for each in worker.share)


@pytest.mark.every_run("fencepost-consumer", "fencepost-cooperative-sticky")
@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("consumer", {"group_protocol": "consumer"}),
        ("cooperative", {"partition_assignment_strategy": "cooperative-sticky"}),
        ("eager", {"partition_assignment_strategy": "range,roundrobin"}),
        ("eager", {"partition_assignment_strategy": "roundrobin"}),
    ],
    ids=["consumer", "cooperative-sticky", "range", "roundrobin"],
)
def test_readers_and_confluent_kafka_share_a_topic(
    address: str, wide: str, protocol: GroupProtocol, settings: dict[str, str]
) -> None:
    write(address, wide, 0, 40)
    with working(address, wide, wide, 1, group_protocol=protocol) as workers:
        until(lambda: len(read_by(workers)) == 40)
        with confluent(address, wide, **settings) as other:
            until(lambda: len(other.assigned) == 2 and len(workers[0].share) == 2)
            assert sorted([*other.assigned, *shares(workers)]) == [0, 1, 2, 3]
            write(address, wide, 40, 40)
            until(lambda: len(read_by(workers)) + len(other.records) >= 80)
            assert sorted(read_by(workers).values()) == [1] * 60
            assert len(set(other.records)) == 20
        until(lambda: len(workers[0].share) == 4)
        write(address, wide, 80, 40)
        until(lambda: set(range(80, 120)) <= set(read_by(workers)))


@pytest.mark.every_run("fencepost-range")
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_reader_joins_a_classic_group_as_one_of_its_members(address: str, wide: str, strategy: str) -> None:
    """Without being told: rolling from other clients to readers works, whatever the group speaks."""
    write(address, wide, 0, 40)
    with confluent(address, wide, partition_assignment_strategy=strategy) as other:
        until(lambda: len(other.records) == 40)
        with working(address, wide, wide, 2) as workers:
            until(lambda: len(shares(workers)) + len(other.assigned) == 4 and all(worker.share for worker in workers))
            write(address, wide, 40, 40)
            until(lambda: {*read_by(workers)} >= {40 + each for each in shares(workers)})
            other.stop()
            until(lambda: shares(workers) == [0, 1, 2, 3])
            write(address, wide, 80, 40)
            until(lambda: set(range(80, 120)) <= set(read_by(workers)))


@pytest.mark.every_run("fencepost")
async def test_readers_and_aiokafka_share_a_topic(address: str, wide: str) -> None:
    write(address, wide, 0, 40)
    async with test_groups_aiokafka.Reader(address, wide, wide) as other:
        await test_groups_aiokafka.until(lambda: len(other.values) == 40)
        with working(address, wide, wide, 1) as workers:
            await test_groups_aiokafka.until(lambda: len(other.assigned) == 2 and len(workers[0].share) == 2)
            assert sorted([*other.assigned, *shares(workers)]) == [0, 1, 2, 3]
            await asyncio.to_thread(write, address, wide, 40, 40)
            await test_groups_aiokafka.until(lambda: {*map(int, other.values), *read_by(workers)} >= set(range(40, 80)))


@pytest.mark.every_run("fencepost")
def test_readers_and_kafka_python_share_a_topic(address: str, wide: str) -> None:
    write(address, wide, 0, 40)
    other = test_groups_kafka_python.Reader(address, wide, wide)
    try:
        until(lambda: len(other.values) == 40)
        with working(address, wide, wide, 1) as workers:
            until(lambda: len(other.assigned) == 2 and len(workers[0].share) == 2)
            assert sorted([*other.assigned, *shares(workers)]) == [0, 1, 2, 3]
            write(address, wide, 40, 40)
            until(lambda: {*map(int, other.values), *read_by(workers)} >= set(range(80)))
            other.stop()
            until(lambda: len(workers[0].share) == 4)
            write(address, wide, 80, 40)
            until(lambda: set(range(80, 120)) <= set(read_by(workers)))
    finally:
        other.stop()
    assert other.failure is None


_STRATEGY = "org.apache.kafka.clients.consumer."


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.every_run("fencepost-cooperative-sticky", "kafka-range")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--group-protocol", "consumer"), id="consumer"),
        pytest.param(("--assignment-strategy", f"{_STRATEGY}RangeAssignor"), id="range"),
        pytest.param(("--assignment-strategy", f"{_STRATEGY}CooperativeStickyAssignor"), id="cooperative-sticky"),
    ],
)
def test_readers_and_javas_consumer_share_a_topic(address: str, wide: str, how: tuple[str, ...]) -> None:
    """The reader is not told which protocol the group speaks. What Java has committed is not read again."""
    write(address, wide, 0, 40)
    with VerifiableConsumer(address, wide, wide, *how) as other:
        other.await_held(0, 1, 2, 3)
        read = 0
        while read < 40:
            read += other.next("records_consumed")["count"]
        other.next("offsets_committed")
        with working(address, wide, wide, 1) as workers:
            until(lambda: len(workers[0].share) == 2)
            theirs = {0, 1, 2, 3} - set(shares(workers))
            other.await_held(*theirs)
            write(address, wide, 40, 40)
            until(lambda: sum(number >= 40 for number in read_by(workers)) == 20)
            while read < 60:
                read += other.next("records_consumed")["count"]
            other.next("offsets_committed")
            other.stop()
            until(lambda: len(workers[0].share) == 4)
            write(address, wide, 80, 40)
            until(lambda: set(range(80, 120)) <= set(read_by(workers)))
            assert {number for number in read_by(workers) if number >= 40 and number % PARTITIONS in theirs} == {
                number for number in range(80, 120) if number % PARTITIONS in theirs
            }


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.long
def test_readers_and_consumers_of_three_clients_share_a_topic(address: str, wide: str) -> None:
    """Java's consumer, confluent-kafka and two readers, all with the classic protocol."""
    write(address, wide, 0, 40)
    with (
        VerifiableConsumer(address, wide, wide, "--assignment-strategy", f"{_STRATEGY}RangeAssignor") as java,
        confluent(address, wide, partition_assignment_strategy="range") as other,
    ):
        java.await_share(2)
        with working(address, wide, wide, 2) as workers:
            until(lambda: len(other.assigned) == 1 and all(len(worker.share) == 1 for worker in workers))
            java.await_held(*({0, 1, 2, 3} - {*other.assigned, *shares(workers)}))
            java.stop()
            other.stop()
            until(lambda: shares(workers) == [0, 1, 2, 3])
            write(address, wide, 40, 40)
            until(lambda: set(range(40, 80)) <= set(read_by(workers)))
