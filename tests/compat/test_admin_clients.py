"""The admin clients of confluent-kafka, kafka-python and aiokafka: topics, configs, groups, offsets, the node itself.

Java's stands in `test_java_tools.py`; groups that have members in `test_groups_*.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.group_client import await_coordinator, commit
from tests.support.raw import RawClient

with warnings.catch_warnings():
    # See test_kafka_python.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin
    import kafka.errors

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

START = 1_700_000_000_000
SECONDS = 30


@pytest.fixture
def filled(raw: RawClient, topic: str) -> str:
    """Ten records in partition 0, a second apart; none in partition 1."""
    raw.produce(topic, batch([b"x"] * 10, timestamps=[START + 1000 * number for number in range(10)]))
    return topic


@pytest.fixture
def group(raw: RawClient, filled: str) -> str:
    """A group without members that has read three records."""
    name = f"group-{filled}"
    await_coordinator(raw, name)
    assert commit(raw, name, filled, 3, metadata="note") is ErrorCode.NONE
    return name


# --- confluent-kafka ---


@pytest.fixture
def confluent(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def only(futures: dict[Any, Any]) -> Any:
    """The result of the one thing that was asked for."""
    [future] = futures.values()
    return future.result(SECONDS)


def refusal(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as caught:
        only(futures)
    code: int = caught.value.args[0].code()
    return code


def test_confluent_describes_and_grows_a_topic(confluent: AdminClient, topic: str) -> None:
    described = only(confluent.describe_topics(TopicCollection([topic])))
    assert (described.name, [row.id for row in described.partitions]) == (topic, [0, 1])
    assert {(row.leader.id, row.isr[0].id) for row in described.partitions} == {(1, 1)}
    only(confluent.create_partitions([NewPartitions(topic, 5)]))
    assert len(only(confluent.describe_topics(TopicCollection([topic]))).partitions) == 5
    assert refusal(confluent.create_partitions([NewPartitions(topic, 4)])) == KafkaError.INVALID_PARTITIONS
    assert refusal(confluent.create_topics([NewTopic(topic, 1, 1)])) == KafkaError.TOPIC_ALREADY_EXISTS
    unknown = confluent.describe_topics(TopicCollection([f"{topic}-not"]))
    assert refusal(unknown) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_confluent_describes_and_alters_configs(confluent: AdminClient, topic: str) -> None:
    def resource(*changes: ConfigEntry) -> ConfigResource:
        return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(changes) or None)

    def values() -> dict[str, str]:
        return {name: entry.value for name, entry in only(confluent.describe_configs([resource()])).items()}

    assert values()["retention.ms"] == "604800000"
    longer = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    both = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    only(confluent.incremental_alter_configs([resource(longer, both)]))
    assert (values()["retention.ms"], values()["cleanup.policy"]) == ("5000", "delete,compact")
    default = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    only(confluent.incremental_alter_configs([resource(default)]))
    assert values()["retention.ms"] == "604800000"
    replaced = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "2000000"})
    with pytest.warns(DeprecationWarning, match="alter_configs has been deprecated"):
        only(confluent.alter_configs([replaced]))
    assert (values()["segment.bytes"], values()["cleanup.policy"]) == ("2000000", "delete"), "all replaced"
    wrong = ConfigEntry("retention.mss", "1", incremental_operation=AlterConfigOpType.SET)
    assert refusal(confluent.incremental_alter_configs([resource(wrong)])) == KafkaError.INVALID_CONFIG


def test_confluent_describes_the_node(confluent: AdminClient) -> None:
    found = only(confluent.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert found["node.id"].value == "1"
    cluster = confluent.describe_cluster().result(SECONDS)
    assert (len(cluster.nodes), cluster.controller.id) == (1, 1)


def test_confluent_finds_offsets_by_time_and_deletes_records(confluent: AdminClient, filled: str) -> None:
    partition = confluent_kafka.TopicPartition(filled, 0)

    def offset(spec: OffsetSpec) -> int:
        found: int = only(confluent.list_offsets({partition: spec})).offset
        return found

    assert offset(OffsetSpec.for_timestamp(START + 2001)) == 3
    assert offset(OffsetSpec.max_timestamp()) == 9
    deleted = only(confluent.delete_records([confluent_kafka.TopicPartition(filled, 0, 4)]))
    assert deleted.low_watermark == 4
    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (4, 10)
    too_far = confluent.delete_records([confluent_kafka.TopicPartition(filled, 0, 11)])
    assert refusal(too_far) == KafkaError.OFFSET_OUT_OF_RANGE


def test_confluent_lists_describes_moves_and_deletes_a_group(confluent: AdminClient, group: str, filled: str) -> None:
    assert group in {found.group_id for found in confluent.list_consumer_groups().result(SECONDS).valid}
    assert only(confluent.describe_consumer_groups([group])).state == confluent_kafka.ConsumerGroupState.EMPTY
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group)
    [found] = only(confluent.list_consumer_group_offsets([wanted])).topic_partitions
    assert found.offset == 3, "and nothing about its metadata: see FINDINGS.md"
    moved = confluent_kafka.ConsumerGroupTopicPartitions(group, [confluent_kafka.TopicPartition(filled, 0, 8)])
    only(confluent.alter_consumer_group_offsets([moved]))
    assert only(confluent.list_consumer_group_offsets([wanted])).topic_partitions[0].offset == 8
    only(confluent.delete_consumer_groups([group]))
    assert refusal(confluent.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND


def test_confluent_asks_what_needs_security_or_more_nodes(confluent: AdminClient, topic: str) -> None:
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert confluent.describe_acls(anything).result(SECONDS) == [], "SECURITY_DISABLED is no error to it"
    assert confluent.describe_user_scram_credentials().result(SECONDS) == {}
    partition = confluent_kafka.TopicPartition(topic, 0)
    [answer] = confluent.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(SECONDS).values()
    assert answer.code() == KafkaError.ELECTION_NOT_NEEDED


# --- kafka-python ---


@pytest.fixture
def python(address: str) -> Iterator[kafka.admin.KafkaAdminClient]:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
    yield client
    client.close()


def test_kafka_python_describes_and_grows_a_topic(python: Any, topic: str) -> None:
    [described] = python.describe_topics([topic])
    assert (described["name"], len(described["partitions"])) == (topic, 2)
    python.create_partitions({topic: kafka.admin.NewPartitions(5)})
    assert len(python.describe_topics([topic])[0]["partitions"]) == 5
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python.create_partitions({topic: kafka.admin.NewPartitions(4)})
    paged = python.describe_topic_partitions([topic], response_partition_limit=2)
    assert paged["next_cursor"]["partition_index"] == 2


def test_kafka_python_describes_and_alters_configs(python: Any, topic: str) -> None:
    def resource(**configs: str) -> Any:
        dotted = {name.replace("_", "."): value for name, value in configs.items()}
        return kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, configs=dotted or None)

    def modified() -> dict[str, str]:
        entries = python.describe_configs([resource()])["topic"][topic]
        return {name: entry["value"] for name, entry in entries.items()}

    python.alter_configs([resource(retention_ms="5000", cleanup_policy="compact")])
    assert modified()["retention.ms"] == "5000"
    python.alter_configs([resource(retention_ms="6000")])
    assert (modified()["retention.ms"], modified()["cleanup.policy"]) == ("6000", "compact"), "one by one"
    python.reset_configs([resource(cleanup_policy="")])
    assert "cleanup.policy" not in modified()


def test_kafka_python_describes_the_node(python: Any) -> None:
    cluster = python.describe_cluster()
    assert [node["broker_id"] for node in cluster["brokers"]] == [1]
    python.describe_features()
    [node] = python.describe_log_dirs()
    [directory] = node["log_dirs"]
    assert (node["broker"], directory["error_code"]) == (1, 0)


def test_kafka_python_finds_offsets_by_time_and_deletes_records(python: Any, filled: str) -> None:
    partition = kafka.TopicPartition(filled, 0)

    def offset(spec: Any) -> int:
        found: int = python.list_partition_offsets({partition: spec})[partition].offset
        return found

    assert offset(START + 2001) == 3
    assert offset(kafka.admin.OffsetSpec.MAX_TIMESTAMP) == 9
    assert python.delete_records({partition: 4})[partition]["low_watermark"] == 4
    assert offset(kafka.admin.OffsetSpec.EARLIEST) == 4
    assert offset(kafka.admin.OffsetSpec.LATEST) == 10


def test_kafka_python_lists_describes_moves_and_deletes_a_group(python: Any, group: str, filled: str) -> None:
    partition = kafka.TopicPartition(filled, 0)
    assert group in {found["group_id"] for found in python.list_groups()}
    assert python.describe_groups([group])[group]["group_state"] == "Empty"
    assert python.list_group_offsets([group])[group][partition].offset == 3
    python.alter_group_offsets(group, {partition: kafka.OffsetAndMetadata(8, "moved", -1)})
    assert python.list_group_offsets([group])[group][partition].offset == 8
    python.reset_group_offsets(group, {partition: kafka.admin.OffsetSpec.EARLIEST})
    assert python.list_group_offsets([group])[group][partition].offset == 0
    python.delete_group_offsets(group, [partition])
    assert partition not in python.list_group_offsets([group]).get(group, {})
    python.delete_groups([group])
    assert group not in {found["group_id"] for found in python.list_groups()}


def test_kafka_python_asks_what_needs_security_or_more_nodes(python: Any, topic: str, raw: RawClient) -> None:
    everything = kafka.admin.ACLFilter(
        None,
        None,
        kafka.admin.ACLOperation.ANY,
        kafka.admin.ACLPermissionType.ANY,
        kafka.admin.ResourcePatternFilter(kafka.admin.ResourceType.ANY, None, kafka.admin.ACLResourcePatternType.ANY),
    )
    with pytest.raises(kafka.errors.SecurityDisabledError):
        python.describe_acls(everything)
    assert not python.describe_user_scram_credentials()
    assert not python.list_partition_reassignments()
    pid = raw.new_pid()
    raw.produce(topic, batch([b"x"] * 3, pid=pid, epoch=0, sequence=0))
    partition = kafka.TopicPartition(topic, 0)
    [producer] = python.describe_producers([partition])[partition].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (pid, 0, 2)
    assert topic in python.list_config_resources()["topic"]
    assert list(python.list_transactions()) == [1]


# --- aiokafka ---


@pytest.fixture
def aio(address: str) -> AbstractAsyncContextManager[Any]:
    @asynccontextmanager
    async def running() -> AsyncIterator[Any]:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    return running()


async def test_aiokafka_describes_and_grows_a_topic(aio: Any, topic: str) -> None:
    [described] = await aio.describe_topics([topic])
    assert (described["topic"], len(described["partitions"])) == (topic, 2)
    await aio.create_partitions({topic: aiokafka.admin.NewPartitions(5)})
    [described] = await aio.describe_topics([topic])
    assert len(described["partitions"]) == 5


async def test_aiokafka_describes_and_alters_configs(aio: Any, topic: str) -> None:
    kind = aiokafka.admin.config_resource.ConfigResourceType.TOPIC
    await aio.alter_configs([aiokafka.admin.config_resource.ConfigResource(kind, topic, {"retention.ms": "5000"})])
    [answer] = await aio.describe_configs([aiokafka.admin.config_resource.ConfigResource(kind, topic)])
    [(code, _, _, name, entries)] = answer.resources
    assert (code, name) == (0, topic)
    assert {entry[0]: entry[1] for entry in entries}["retention.ms"] == "5000"


async def test_aiokafka_describes_the_node_and_groups(aio: Any, group: str, filled: str) -> None:
    cluster = await aio.describe_cluster()
    assert [node["node_id"] for node in cluster["brokers"]] == [1]
    assert group in {listed[0] for listed in await aio.list_consumer_groups()}
    [answer] = await aio.describe_consumer_groups([group])
    assert answer.groups[0][:3] == (0, group, "Empty")
    offsets = await aio.list_consumer_group_offsets(group)
    assert offsets[aiokafka.TopicPartition(filled, 0)].offset == 3


async def test_aiokafka_deletes_records(aio: Any, raw: RawClient, filled: str) -> None:
    partition = aiokafka.TopicPartition(filled, 0)
    wish = aiokafka.admin.RecordsToDelete(before_offset=4)
    assert await aio.delete_records({partition: wish}) == {partition: 4}
    assert raw.list_offset(filled, -2)[0] == 4
