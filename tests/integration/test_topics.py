"""CreateTopics and DeleteTopics: what is made, what is refused and why."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.raw import CREATE_TOPICS, DELETE_TOPICS, RawClient, new_topic

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE


def create(client: RawClient, *topics: dict[str, Any], version: int = 7, validate_only: bool = False) -> Any:
    answer = client.call(CREATE_TOPICS, version, topics=list(topics), timeout=30_000, validate_only=validate_only)
    return answer.topics


def delete(client: RawClient, *topics: str, version: int = 6) -> dict[str, ErrorCode]:
    wanted = [{"name": name, "topic_id": None} for name in topics]
    answer = client.call(DELETE_TOPICS, version, topics=wanted, topic_names=list(topics), timeout=30_000)
    return {entry.name: ErrorCode.of(entry.error_code) for entry in answer.responses}


def exists(client: RawClient, name: str) -> bool:
    [entry] = client.metadata([name]).topics
    return bool(entry.error_code == NONE)


# --- CreateTopics ---


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates_the_topic(client: RawClient, name: str, version: int) -> None:
    [entry] = create(client, new_topic(name, 2), version=version)
    assert (entry.name, entry.error_code) == (name, NONE)
    client.await_topic(name, 2)
    assert client.produce(name, batch([b"a"]), partition=1)[:2] == (NONE, 0)


def test_the_answer_says_what_was_made(client: RawClient, name: str) -> None:
    [entry] = create(client, new_topic(name, 5, configs={"retention.ms": "1234567"}))
    assert (entry.num_partitions, entry.replication_factor) == (5, 1)
    assert entry.topic_id is not None and entry.topic_id.int != 0
    assert {config.name: config.value for config in entry.configs}["retention.ms"] == "1234567"


def test_minus_one_means_the_servers_default(client: RawClient, name: str) -> None:
    [entry] = create(client, new_topic(name, -1, -1))
    assert (entry.error_code, entry.num_partitions, entry.replication_factor) == (NONE, 1, 1)


def test_partitions_may_be_assigned_by_hand(client: RawClient, name: str) -> None:
    [broker] = client.metadata([]).brokers
    assignments = [{"partition_index": index, "broker_ids": [broker.node_id]} for index in range(3)]
    [entry] = create(client, new_topic(name, -1, -1, assignments=assignments))
    assert (entry.error_code, entry.num_partitions, entry.replication_factor) == (NONE, 3, 1)


def test_partitions_assigned_to_a_broker_that_is_not_there_are_refused(client: RawClient, name: str) -> None:
    [entry] = create(client, new_topic(name, -1, -1, assignments=[{"partition_index": 0, "broker_ids": [4711]}]))
    assert entry.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_assignments_and_a_number_of_partitions_exclude_each_other(client: RawClient, name: str) -> None:
    [entry] = create(client, new_topic(name, 1, 1, assignments=[{"partition_index": 0, "broker_ids": [1]}]))
    assert entry.error_code == ErrorCode.INVALID_REQUEST


def test_validate_only_makes_nothing(client: RawClient, name: str) -> None:
    [entry] = create(client, new_topic(name, 3), validate_only=True)
    assert (entry.error_code, entry.num_partitions) == (NONE, 3)
    assert not exists(client, name)
    [entry] = create(client, new_topic(name))
    assert entry.error_code == NONE


def test_validate_only_finds_the_same_faults(client: RawClient, topic: str, name: str) -> None:
    answers = create(client, new_topic(topic), new_topic(f"{name}-x", 0), validate_only=True)
    assert {entry.name: entry.error_code for entry in answers} == {
        topic: ErrorCode.TOPIC_ALREADY_EXISTS,
        f"{name}-x": ErrorCode.INVALID_PARTITIONS,
    }


def test_an_existing_topic_is_not_created_again(client: RawClient, topic: str) -> None:
    client.produce(topic, batch([b"a"]))
    [entry] = create(client, new_topic(topic, 4))
    assert entry.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert entry.error_message
    assert client.fetch(topic, 0).values == [b"a"]


def test_a_name_twice_in_one_request_is_an_invalid_request(client: RawClient, name: str) -> None:
    answers = create(client, new_topic(name), new_topic(name), new_topic(f"{name}-fine"))
    assert {entry.name: entry.error_code for entry in answers} == {
        name: ErrorCode.INVALID_REQUEST,
        f"{name}-fine": NONE,
    }
    assert not exists(client, name)


@pytest.mark.parametrize("partitions", [0, -2])
def test_fewer_than_one_partition_is_refused(client: RawClient, name: str, partitions: int) -> None:
    [entry] = create(client, new_topic(name, partitions))
    assert entry.error_code == ErrorCode.INVALID_PARTITIONS
    assert not exists(client, name)


@pytest.mark.parametrize("factor", [0, -2, 2, 3])
def test_a_replication_factor_other_than_one_is_refused_by_a_single_server(
    client: RawClient, name: str, factor: int
) -> None:
    [entry] = create(client, new_topic(name, 1, factor))
    assert entry.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert entry.error_message
    assert not exists(client, name)


@pytest.mark.parametrize("bad", ["", ".", "..", "a b", "a/b", "a\\b", "a:b", "ü", "x" * 250, "a\n"])
def test_an_invalid_name_is_refused_with_the_reason(client: RawClient, bad: str) -> None:
    [entry] = create(client, new_topic(bad))
    assert entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert entry.error_message


def test_the_longest_name_is_taken(client: RawClient, name: str) -> None:
    longest = name.ljust(249, "x")
    [entry] = create(client, new_topic(longest))
    assert entry.error_code == NONE


def test_names_that_differ_only_in_dot_and_underscore_collide(client: RawClient, name: str) -> None:
    """Kafka's metrics cannot tell them apart, so it takes only one."""
    assert create(client, new_topic(f"{name}.a_b"))[0].error_code == NONE
    [entry] = create(client, new_topic(f"{name}_a.b"))
    assert entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("no.such.config", "1", id="unknown"),
        pytest.param("retention.ms", "soon", id="not-a-number"),
        pytest.param("retention.ms", "-2", id="below-the-least"),
        pytest.param("max.message.bytes", "-1", id="negative-size"),
        pytest.param("segment.bytes", "0", id="empty-segments"),
        pytest.param("cleanup.policy", "burn", id="unknown-policy"),
        pytest.param("compression.type", "rar", id="unknown-codec"),
        pytest.param("message.timestamp.type", "Never", id="unknown-time"),
        pytest.param("retention.ms", None, id="null"),
    ],
)
def test_an_invalid_config_is_refused_with_the_reason(
    client: RawClient, name: str, key: str, value: str | None
) -> None:
    [entry] = create(client, new_topic(name, configs={key: value}))
    assert entry.error_code == ErrorCode.INVALID_CONFIG
    assert key in (entry.error_message or "")
    assert not exists(client, name)


def test_a_bad_topic_does_not_spoil_its_neighbours(client: RawClient, name: str) -> None:
    answers = create(client, new_topic(f"{name}-good"), new_topic(f"{name}-bad", 0))
    assert {entry.name: entry.error_code for entry in answers} == {
        f"{name}-good": NONE,
        f"{name}-bad": ErrorCode.INVALID_PARTITIONS,
    }


# --- DeleteTopics ---


def await_gone(client: RawClient, name: str) -> None:
    """Kafka's brokers learn of a deletion a moment after it was answered."""
    while client.ask_offset(name, -1).error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        pass


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_deletes_the_topic(client: RawClient, topic: str, version: int) -> None:
    assert delete(client, topic, version=version) == {topic: NONE}
    await_gone(client, topic)
    assert not exists(client, topic)
    assert client.produce(topic, batch([b"a"])).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch(topic, 0).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_cannot_be_deleted(client: RawClient, topic: str, name: str) -> None:
    assert delete(client, f"{name}-unknown", topic) == {
        f"{name}-unknown": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        topic: NONE,
    }


def test_a_topic_is_deleted_by_its_id(client: RawClient, name: str) -> None:
    topic_id = client.create_topic(name)
    answer = client.call(DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": topic_id}], timeout=30_000)
    [entry] = answer.responses
    assert (entry.error_code, entry.name, entry.topic_id) == (NONE, name, topic_id)
    await_gone(client, name)


def test_an_unknown_id_cannot_be_deleted(client: RawClient) -> None:
    unknown = uuid.uuid4()
    answer = client.call(DELETE_TOPICS, 6, topics=[{"name": None, "topic_id": unknown}], timeout=30_000)
    [entry] = answer.responses
    assert (entry.error_code, entry.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, unknown)


def test_a_topic_named_both_ways_is_an_invalid_request(client: RawClient, name: str) -> None:
    topic_id = client.create_topic(name)
    answer = client.call(DELETE_TOPICS, 6, topics=[{"name": name, "topic_id": topic_id}], timeout=30_000)
    assert {ErrorCode.of(entry.error_code) for entry in answer.responses} == {ErrorCode.INVALID_REQUEST}
    assert exists(client, name)


def test_a_topic_made_anew_is_empty_and_has_another_id(client: RawClient, name: str) -> None:
    first = client.create_topic(name)
    pid = client.new_pid()
    whole = batch([b"a"] * 3, pid=pid, epoch=0, sequence=0)
    client.produce(name, whole)
    delete(client, name)
    await_gone(client, name)
    second = client.create_topic(name)
    assert second != first
    assert client.end_offset(name) == 0
    # Nothing is left of the producers of the old one either: the same batch is new here.
    assert client.produce(name, whole)[:2] == (NONE, 0)
    assert client.end_offset(name) == 3


def test_the_old_id_of_a_topic_made_anew_is_unknown(client: RawClient, name: str) -> None:
    first = client.create_topic(name)
    delete(client, name)
    await_gone(client, name)
    client.create_topic(name)
    assert client.fetch(first, 0, version=13).error is ErrorCode.UNKNOWN_TOPIC_ID
    assert client.produce(first, batch([b"a"]), version=13).error is ErrorCode.UNKNOWN_TOPIC_ID
