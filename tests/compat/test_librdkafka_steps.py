"""The steps of librdkafka's own tests that its users' programs depend on, through confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle, islice

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.compat.test_confluent_kafka import consumer
from tests.support.raw import RawClient

pytestmark = pytest.mark.compat

SECONDS = 30.0
OTHERS = KafkaError._INVALID_DIFFERENT_RECORD
"""The code of a record that is well, in a batch with others that are not."""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2 * SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def codes_of_a_batch(address: str, topic: str, keys: list[bytes | None]) -> list[int]:
    """Send one batch, and return the error code of each record."""
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 200, "retries": 0})
    codes: dict[int, int] = {}

    def note(error: KafkaError | None, message: confluent_kafka.Message) -> None:
        codes[int(message.value() or b"")] = error.code() if error is not None else 0

    for number, key in enumerate(keys):
        producer.produce(topic, str(number).encode(), key, partition=0, on_delivery=note)
    assert producer.flush(SECONDS) == 0
    return [codes[number] for number in range(len(keys))]


def test_0011_the_records_without_a_key_are_named(address: str, raw: RawClient, name: str) -> None:
    raw.create_topic(name, configs={"cleanup.policy": "compact"})
    keys = list(islice(cycle([None, *[b"key"] * 9]), 100))
    expected = [OTHERS if key else KafkaError.INVALID_RECORD for key in keys]
    assert codes_of_a_batch(address, name, keys) == expected


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"])
def test_0081_a_topic_keeps_the_compression_it_was_given(admin: AdminClient, name: str, codec: str) -> None:
    new = NewTopic(name, num_partitions=1, replication_factor=1, config={"compression.type": codec})
    admin.create_topics([new])[name].result(SECONDS)
    resource = ConfigResource(ResourceType.TOPIC, name)
    found = admin.describe_configs([resource])[resource].result(SECONDS)
    assert found["compression.type"].value == codec
    entry = ConfigEntry("compression.type", "gzip", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([changed])[changed].result(SECONDS)

    def is_changed() -> bool:  # on Apache Kafka a moment later
        return bool(admin.describe_configs([resource])[resource].result(SECONDS)["compression.type"].value == "gzip")

    until(is_changed)


def test_0081_a_user_may_have_a_short_salt(admin: AdminClient, name: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 10_000)
    upsertion = UserScramCredentialUpsertion(name, info, b"password", b"salt")
    assert admin.alter_user_scram_credentials([upsertion])[name].result(SECONDS) is None
    deletion = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_256)
    assert admin.alter_user_scram_credentials([deletion])[name].result(SECONDS) is None


@pytest.mark.long
def test_0077_a_short_compaction_lag_is_kept(address: str, raw: RawClient, name: str) -> None:
    """Librdkafka writes, waits until compaction has been there, and reads. This is its topic."""
    raw.create_topic(
        name,
        configs={
            "cleanup.policy": "compact",
            "segment.ms": "1000",
            "max.compaction.lag.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
        },
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0})
    for number in range(20):
        producer.produce(name, str(number).encode(), b"key", partition=0)
        producer.flush(SECONDS)
    time.sleep(1.1)  # the segment's time
    producer.produce(name, b"last", b"other", partition=0)
    producer.flush(SECONDS)
    until(lambda: records_of(address, name) <= 3)


def records_of(address: str, topic: str) -> int:
    reader = consumer(address, enable_partition_eof=True)
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    count = 0
    while True:
        message = reader.poll(SECONDS)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            reader.close()
            return count
        count += 1
