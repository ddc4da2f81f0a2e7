"""Groups in which fencepost's readers and other clients' consumers share a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import fencepost
from fencepost.core.groups.membership import GroupProtocol
from tests.compat import test_groups_aiokafka, test_groups_confluent_kafka
from tests.support.group_workers import Worker, read_by, until, working
from tests.support.raw import RawClient

pytestmark = pytest.mark.compat

PARTITIONS = 4


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


def test_readers_and_aiokafka_share_a_topic(address: str, wide: str) -> None:
    write(address, wide, 0, 40)

    async def main() -> None:
        async with test_groups_aiokafka.Reader(address, wide, wide) as other:
            await test_groups_aiokafka.until(lambda: len(other.values) == 40)
            with working(address, wide, wide, 1) as workers:
                await test_groups_aiokafka.until(lambda: len(other.assigned) == 2 and len(workers[0].share) == 2)
                assert sorted([*other.assigned, *shares(workers)]) == [0, 1, 2, 3]
                await asyncio.to_thread(write, address, wide, 40, 40)
                await test_groups_aiokafka.until(
                    lambda: {*map(int, other.values), *read_by(workers)} >= set(range(40, 80))
                )

    asyncio.run(main())
