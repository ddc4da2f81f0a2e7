"""Kafka keeps its state in internal topics. Fencepost has none, and lists none: a client that subscribes by a pattern
through librdkafka reads them, as it does on Kafka, where it gets records that no program of its user has written."""

from __future__ import annotations

import asyncio
import time
import warnings

import aiokafka
import confluent_kafka
import pytest

import fencepost
from fencepost.errors import ErrorCode, ServerError
from tests.conftest import Engine

with warnings.catch_warnings():
    # It reads its schemas by a function that Python 3.11 deprecates (see FINDINGS.md), here and at run time.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka_python

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

KAFKAS = {"__consumer_offsets", "__transaction_state"}
SECONDS = 60.0


@pytest.fixture
def topic(engine: Engine, name: str) -> str:
    """A topic with a record, on a server that has committed a transaction and an offset."""
    with fencepost.Producer(engine.address, name=name) as producer, producer.transaction():
        producer.send(name, b"one")
    with fencepost.Admin(engine.address) as admin:
        admin.commit_group_offsets(f"{name}-before", name, {0: 0})
    return name


@pytest.mark.every_run("fencepost-classic")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_reads_internal_topics_by_a_pattern(engine: Engine, topic: str, protocol: str) -> None:
    settings = {"bootstrap.servers": engine.address, "group.id": topic, "group.protocol": protocol}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([f"^(__consumer_offsets|__transaction_state|{topic})$"])
        deadline = time.monotonic() + SECONDS
        read: set[str | None] = set()
        while topic not in read or (engine.is_kafka and not read & KAFKAS):
            assert time.monotonic() < deadline
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                read.add(message.topic())
        assert {each.topic for each in consumer.assignment()} == {topic} | (KAFKAS if engine.is_kafka else set())
    finally:
        consumer.close()


@pytest.mark.every_run("fencepost")
def test_kafka_python_and_aiokafka_leave_them_out(engine: Engine, topic: str) -> None:
    pattern = f"^(__consumer_offsets|__transaction_state|{topic})$"
    settings = {"bootstrap_servers": engine.address, "auto_offset_reset": "earliest"}
    blocking = kafka_python.KafkaConsumer(**settings, group_id=f"{topic}-blocking")
    blocking.subscribe(pattern=pattern)
    deadline = time.monotonic() + SECONDS
    while not blocking.assignment():
        assert time.monotonic() < deadline
        blocking.poll(200)
    assert {each.topic for each in blocking.assignment()} == {topic}
    blocking.close()

    async def assigned() -> set[str]:
        consumer = aiokafka.AIOKafkaConsumer(**settings, group_id=f"{topic}-async")
        consumer.subscribe(pattern=pattern)
        await consumer.start()
        try:
            await asyncio.wait_for(consumer.getone(), SECONDS)
            return {each.topic for each in consumer.assignment()}
        finally:
            await consumer.stop()

    assert asyncio.run(assigned()) == {topic}


@pytest.mark.parametrize("internal", sorted(KAFKAS))
def test_nobody_writes_to_an_internal_topic_or_creates_one(engine: Engine, topic: str, internal: str) -> None:
    """On our server a topic of that name would be an ordinary one: a tool that reads it would find nothing."""
    refused = []
    producer = confluent_kafka.Producer({"bootstrap.servers": engine.address, "message.timeout.ms": 20_000})
    producer.produce(internal, b"x", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(SECONDS) == 0
    assert refused[0].code() in (confluent_kafka.KafkaError.TOPIC_EXCEPTION, confluent_kafka.KafkaError._MSG_TIMED_OUT)
    with fencepost.Admin(engine.address) as admin:
        if not engine.is_kafka:
            with pytest.raises(ServerError, match="fencepost has no such topic") as caught:
                admin.create_topic(internal, 1)
            assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
        listed = {each.name for each in admin.topics(internal=True)}
    assert listed & KAFKAS == (KAFKAS if engine.is_kafka else set())
