"""aiokafka's transactional producer."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import aiokafka.errors
import pytest

from tests.support.transactions import TransactionClient

pytestmark = pytest.mark.compat

SECONDS = 30


def producer(address: str, name: str) -> Any:
    return aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=name, linger_ms=5)


async def test_transactions_are_committed_and_aborted(
    address: str, transactional: TransactionClient, topic: str, name: str
) -> None:
    async with producer(address, name) as writer:
        for number in range(10):
            await writer.begin_transaction()
            sent = [await writer.send(topic, b"%d" % number, partition=index) for index in (0, 1)]
            await asyncio.gather(*sent)
            await (writer.abort_transaction() if number % 3 == 1 else writer.commit_transaction())
    expected = [b"%d" % number for number in range(10) if number % 3 != 1]
    for partition in (0, 1):
        assert transactional.fetch_committed(topic, partition=partition).values == expected


async def test_its_consumer_reads_only_what_is_committed(address: str, topic: str, name: str) -> None:
    async with producer(address, name) as writer:
        for number in range(20):
            async with writer.transaction():
                await writer.send(topic, b"%d" % number, partition=0)
            await writer.begin_transaction()
            await writer.send_and_wait(topic, b"aborted", partition=0)
            await writer.abort_transaction()
    partition = aiokafka.TopicPartition(topic, 0)
    values: list[bytes] = []
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address, group_id=None, isolation_level="read_committed"
    ) as reader:
        reader.assign([partition])
        reader.seek(partition, 0)
        while len(values) < 20:
            records = (await reader.getmany(partition, timeout_ms=SECONDS * 1000)).get(partition, [])
            values += [record.value for record in records]
    assert values == [b"%d" % number for number in range(20)]


async def test_a_successor_fences_it(address: str, transactional: TransactionClient, topic: str, name: str) -> None:
    async with producer(address, name) as first, producer(address, name) as second:
        with pytest.raises(aiokafka.errors.ProducerFenced):
            async with first.transaction():
                await first.send_and_wait(topic, b"zombie", partition=0)
        async with second.transaction():
            await second.send_and_wait(topic, b"successor", partition=0)
    assert transactional.fetch_committed(topic).values == [b"successor"]


async def test_offsets_of_a_group_go_with_the_transaction(
    address: str, transactional: TransactionClient, topic: str, name: str
) -> None:
    partition = aiokafka.TopicPartition(topic, 0)
    async with producer(address, name) as writer:
        async with writer.transaction():
            await writer.send_offsets_to_transaction({partition: 5}, f"{name}-group")
        await writer.begin_transaction()
        await writer.send_offsets_to_transaction({partition: 9}, f"{name}-group")
        await writer.abort_transaction()
    assert transactional.stable_group_offset(f"{name}-group", topic) == 5
