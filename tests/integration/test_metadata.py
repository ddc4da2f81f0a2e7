"""Metadata and DescribeCluster: who is there, and which topics."""

from __future__ import annotations

import uuid

import pytest

from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.raw import DESCRIBE_CLUSTER, RawClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE


@pytest.mark.parametrize("version", range(14))
def test_every_version_describes_the_topic_and_its_partitions(
    server: TestedServer, client: RawClient, name: str, version: int
) -> None:
    client.create_topic(name, partitions=3)
    answer = client.metadata([name], version=version)
    [broker] = answer.brokers
    assert f"{broker.host}:{broker.port}" == server.address
    [topic] = answer.topics
    assert (topic.error_code, topic.name) == (NONE, name)
    assert sorted(part.partition_index for part in topic.partitions) == [0, 1, 2]
    assert {part.leader_id for part in topic.partitions} == {broker.node_id}
    assert {part.replica_nodes for part in topic.partitions} == {(broker.node_id,)}
    assert {part.isr_nodes for part in topic.partitions} == {(broker.node_id,)}
    assert {part.error_code for part in topic.partitions} == {NONE}


def test_the_controller_is_among_the_brokers(client: RawClient, topic: str) -> None:
    answer = client.metadata([topic])
    assert answer.controller_id in {broker.node_id for broker in answer.brokers}


def test_no_list_means_all_topics_and_an_empty_one_none(client: RawClient, topic: str) -> None:
    assert topic in {entry.name for entry in client.metadata(None).topics}
    assert client.metadata([]).topics == ()


def test_in_version_0_an_empty_list_means_all_topics(client: RawClient, topic: str) -> None:
    assert topic in {entry.name for entry in client.metadata([], version=0).topics}


def test_an_unknown_topic_is_named_with_its_error(client: RawClient, topic: str, name: str) -> None:
    answer = client.metadata([topic, f"{name}-unknown"])
    assert {entry.name: entry.error_code for entry in answer.topics} == {
        topic: NONE,
        f"{name}-unknown": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("bad", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
def test_an_invalid_name_is_refused_and_not_created(client: RawClient, bad: str) -> None:
    [entry] = client.metadata([bad], create=True).topics
    assert entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert bad not in {entry.name for entry in client.metadata(None).topics}


def test_a_topic_is_found_by_its_id(client: RawClient, name: str) -> None:
    topic_id = client.create_topic(name)
    answer = client.metadata([topic_id])
    [entry] = answer.topics
    assert (entry.error_code, entry.name, entry.topic_id) == (NONE, name, topic_id)


def test_an_unknown_id_is_answered_with_it(client: RawClient) -> None:
    unknown = uuid.uuid4()
    answer = client.metadata([unknown])
    [entry] = answer.topics
    assert (entry.error_code, entry.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, unknown)


def test_the_id_of_a_topic_is_in_the_answer(client: RawClient, name: str) -> None:
    topic_id = client.create_topic(name)
    assert [entry.topic_id for entry in client.metadata([name], version=10).topics] == [topic_id]


def test_a_topic_is_created_when_the_client_allows_it(server: TestedServer, client: RawClient, name: str) -> None:
    [entry] = client.metadata([name], create=True).topics
    assert entry.error_code == server.answer_to("first answer for a topic created on demand")
    client.await_topic(name)
    [entry] = client.metadata([name]).topics
    assert (entry.error_code, len(entry.partitions)) == (NONE, 1)


def test_a_topic_is_not_created_when_the_client_does_not_allow_it(client: RawClient, name: str) -> None:
    for _ in range(3):
        [entry] = client.metadata([name], create=False).topics
        assert entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_same_topic_asked_twice_is_answered(client: RawClient, topic: str) -> None:
    assert {(entry.name, entry.error_code) for entry in client.metadata([topic, topic]).topics} == {(topic, NONE)}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster_agrees_with_metadata(
    server: TestedServer, client: RawClient, topic: str, version: int
) -> None:
    cluster = client.call(
        DESCRIBE_CLUSTER,
        version,
        include_cluster_authorized_operations=False,
        include_fenced_brokers=False,
        endpoint_type=1,
    )
    metadata = client.metadata([topic])
    assert cluster.error_code == NONE
    assert cluster.cluster_id == metadata.cluster_id
    [broker] = cluster.brokers
    assert f"{broker.host}:{broker.port}" == server.address
    assert (broker.broker_id,) == tuple(entry.node_id for entry in metadata.brokers)
    assert cluster.controller_id == broker.broker_id


def test_the_cluster_id_has_the_form_of_kafkas(client: RawClient) -> None:
    """22 characters of URL-safe base64: tools print and compare it."""
    assert len(client.metadata([]).cluster_id) == 22
