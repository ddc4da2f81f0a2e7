"""aiokafka."""

from __future__ import annotations

from typing import Any

import aiokafka
import aiokafka.admin
import aiokafka.errors
import pytest

from tests.compat.samples import CODECS, START, Sample, samples
from tests.support.raw import RawClient

pytestmark = pytest.mark.compat

SECONDS = 30


async def produce(address: str, topic: str, records: list[Sample], **settings: Any) -> list[int]:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, linger_ms=5, **settings) as producer:
        futures = [
            await producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=0,
                timestamp_ms=record.timestamp,
                headers=record.headers,
            )
            for record in records
        ]
        return [(await future).offset for future in futures]


async def consume(address: str, topic: str, count: int, offset: int = 0) -> list[Any]:
    partition = aiokafka.TopicPartition(topic, 0)
    records: list[Any] = []
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=address, group_id=None) as reader:
        reader.assign([partition])
        reader.seek(partition, offset)
        while len(records) < count:
            records += (await reader.getmany(partition, timeout_ms=SECONDS * 1000)).get(partition, [])
    return records


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotence", [True, False], ids=["idempotent", "plain"])
async def test_records_come_back_as_they_were_sent(
    address: str, raw: RawClient, topic: str, codec: str, idempotence: bool
) -> None:
    sent = samples(both_null=False)
    settings = {"compression_type": None if codec == "none" else codec, "enable_idempotence": idempotence}
    assert await produce(address, topic, sent, **settings) == list(range(len(sent)))
    received = await consume(address, topic, len(sent))
    assert [Sample(r.key, r.value, r.timestamp, list(r.headers)) for r in received] == sent
    headers = raw.fetch(topic, 0).headers
    assert {header.codec for header in headers} == {CODECS[codec]}
    assert {header.is_idempotent for header in headers} == {idempotence}


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_acks_setting_stores_the_records(address: str, topic: str, acks: int | str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address, acks=acks) as producer:
        for sample in samples(50, both_null=False):
            await producer.send(topic, sample.value, key=sample.key, partition=0)
    assert [record.offset for record in await consume(address, topic, 50)] == list(range(50))


async def test_a_batch_built_by_the_caller_is_stored(address: str, topic: str) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
        builder = producer.create_batch()
        for number in range(20):
            builder.append(key=None, value=b"%d" % number, timestamp=START)
        future = await producer.send_batch(builder, topic, partition=0)
        assert (await future).offset == 0
    assert [record.value for record in await consume(address, topic, 20)] == [b"%d" % number for number in range(20)]


async def test_reading_starts_in_the_middle_of_a_batch(address: str, topic: str) -> None:
    await produce(address, topic, samples(100, both_null=False))
    assert [record.offset for record in await consume(address, topic, 63, offset=37)] == list(range(37, 100))


async def test_offsets_by_time_and_at_both_ends(address: str, topic: str) -> None:
    partition = aiokafka.TopicPartition(topic, 0)
    await produce(address, topic, samples(100, both_null=False))
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=address, group_id=None) as reader:
        reader.assign([partition])
        assert await reader.beginning_offsets([partition]) == {partition: 0}
        assert await reader.end_offsets([partition]) == {partition: 100}
        found = (await reader.offsets_for_times({partition: START + 11}))[partition]
        assert (found.offset, found.timestamp) == (2, START + 20)
        assert (await reader.offsets_for_times({partition: START + 991}))[partition] is None


async def test_a_record_above_the_topics_limit_is_refused(address: str, raw: RawClient, name: str) -> None:
    raw.create_topic(name, configs={"max.message.bytes": "2000"})
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
        with pytest.raises(aiokafka.errors.MessageSizeTooLargeError):
            await producer.send_and_wait(name, b"x" * 5000, partition=0)


async def test_topics_are_created_and_deleted(address: str, name: str) -> None:
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    await admin.create_topics([aiokafka.admin.NewTopic(name, 3, 1)])
    assert name in await admin.list_topics()
    await admin.delete_topics([name])
    assert name not in await admin.list_topics()
    await admin.close()
