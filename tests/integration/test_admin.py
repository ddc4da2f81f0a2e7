"""Admin against our server and against Apache Kafka: the same calls, the same answers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from fencepost.client.admin.results import NewTopic, OffsetChange
from fencepost.client.admin_client import EARLIEST, HIGH_WATERMARK, LATEST, Admin
from fencepost.errors import ErrorCode, ServerError
from tests.integration.conftest import TestedServer

pytestmark = pytest.mark.integration


@pytest.fixture
def admin(server: TestedServer) -> Iterator[Admin]:
    with Admin(server.address) as admin:
        yield admin


@pytest.fixture
def three(admin: Admin, name: str) -> str:
    """A topic of three partitions."""
    admin.create_topic(name, 3)
    return name


def write(server: TestedServer, topic: str, *partitions: int) -> None:
    """One idempotent record per partition named, at the times 1000, 2000 …"""
    producer = Producer({"bootstrap.servers": server.address, "enable.idempotence": True, "log_level": 0})
    for number, partition in enumerate(partitions, 1):
        producer.produce(topic, b"value", partition=partition, timestamp=1000 * number)
        assert producer.flush(60) == 0


def commit(server: TestedServer, group: str, topic: str) -> None:
    """A consumer that reads the topic's first record, commits, and leaves."""
    with_group = {
        "bootstrap.servers": server.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    consumer = Consumer(with_group | {"enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        (message,) = consumer.consume(1, timeout=60)
        assert message.error() is None
        consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()


def code_of(caught: pytest.ExceptionInfo[ServerError]) -> ErrorCode:
    return caught.value.code


def test_the_cluster_has_a_controller_among_its_brokers(server: TestedServer, admin: Admin) -> None:
    cluster = admin.cluster()
    assert cluster.cluster_id
    assert cluster.controller in {broker.id for broker in cluster.brokers}
    assert server.address in {f"{broker.host}:{broker.port}" for broker in cluster.brokers}


def test_a_ping_is_answered(server: TestedServer, admin: Admin) -> None:
    pong = admin.ping()
    assert pong.address == server.address
    assert pong.apis > 10


def test_a_topic_is_created_listed_described_and_deleted(admin: Admin, name: str) -> None:
    admin.create_topic(name, 2, configs={"retention.ms": "86400000"})
    assert [(topic.partitions, topic.replication) for topic in admin.topics() if topic.name == name] == [(2, 1)]
    described = admin.describe_topic(name)
    assert described.topic_id is not None
    assert [partition.partition for partition in described.partitions] == [0, 1]
    assert all(partition.leader >= 0 and partition.in_sync for partition in described.partitions)
    admin.delete_topic(name)
    assert name not in {topic.name for topic in admin.topics()}


def test_a_topic_that_exists_is_not_created_again(admin: Admin, three: str) -> None:
    with pytest.raises(ServerError, match=three) as caught:
        admin.create_topic(three)
    assert code_of(caught) is ErrorCode.TOPIC_ALREADY_EXISTS


def test_of_several_topics_those_that_can_be_are_created(admin: Admin, name: str) -> None:
    with pytest.raises(ServerError) as caught:
        admin.create_topics([NewTopic(name, 1), NewTopic("no/such/name", 1)])
    assert code_of(caught) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert admin.describe_topic(name).name == name


def test_a_topic_can_be_tried_without_being_created(admin: Admin, name: str) -> None:
    admin.create_topics([NewTopic(name, 1)], validate_only=True)
    with pytest.raises(ServerError, match=f"there is no topic '{name}'"):
        admin.describe_topic(name)


def test_a_topic_that_is_not_there_cannot_be_deleted(admin: Admin, name: str) -> None:
    with pytest.raises(ServerError, match=f"there is no topic '{name}'") as caught:
        admin.delete_topic(name)
    assert code_of(caught) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_are_found_at_both_ends_and_by_time(server: TestedServer, admin: Admin, three: str) -> None:
    write(server, three, 0, 0, 1)  # at 1000, 2000 and 3000
    assert admin.earliest(three) == {0: 0, 1: 0, 2: 0}
    assert admin.latest(three) == {0: 2, 1: 1, 2: 0}
    by_time = admin.offsets(three, 1500)
    assert [(at.offset, at.timestamp) for at in by_time.values()] == [(1, 2000), (0, 3000), (-1, -1)]
    assert admin.offsets(three, LATEST, partitions=[1]).keys() == {1}


def test_producers_are_shown_with_their_last_sequence(server: TestedServer, admin: Admin, three: str) -> None:
    write(server, three, 0, 0, 2)
    found = admin.producers(three)
    assert [(state.partition, state.last_sequence, state.transaction_start) for state in found] == [
        (0, 1, None),
        (2, 0, None),
    ]
    assert len({(state.pid, state.epoch) for state in found}) == 1
    assert admin.producers(three, partitions=[1]) == ()


def test_partitions_are_added_and_never_taken_away(admin: Admin, three: str) -> None:
    admin.create_partitions(three, 5, validate_only=True)
    assert len(admin.describe_topic(three).partitions) == 3
    admin.create_partitions(three, 5)
    assert len(admin.describe_topic(three).partitions) == 5
    with pytest.raises(ServerError) as caught:
        admin.create_partitions(three, 4)
    assert code_of(caught) is ErrorCode.INVALID_PARTITIONS


def test_a_broker_tells_its_settings(admin: Admin) -> None:
    (broker,) = admin.cluster().brokers
    settings = {entry.name: entry.value for entry in admin.broker_configs(broker.id)}
    assert int(settings["transaction.max.timeout.ms"] or 0) == 15 * 60 * 1000


def test_configs_are_set_and_put_back(server: TestedServer, admin: Admin, three: str) -> None:
    def found() -> dict[str, tuple[str | None, str]]:
        return {entry.name: (entry.value, entry.source) for entry in admin.topic_configs(three)}

    before = found()
    assert before["retention.ms"][1] == "default"
    admin.alter_topic(three, {"retention.ms": "1000"}, validate_only=True)
    assert found() == before
    changed = {**before, "retention.ms": ("1000", "topic")}
    for configs, remove, expected in (({"retention.ms": "1000"}, [], changed), ({}, ["retention.ms"], before)):
        admin.alter_topic(three, configs, remove=remove)
        while server.name == "kafka" and found() != expected:
            time.sleep(0.01)  # its controller answers before the broker has heard of it
        assert found() == expected


def test_a_config_that_does_not_exist_is_refused(admin: Admin, three: str) -> None:
    with pytest.raises(ServerError, match=r"retention\.mss") as caught:
        admin.alter_topic(three, {"retention.mss": "1"})
    assert code_of(caught) is ErrorCode.INVALID_CONFIG


def test_records_are_deleted_up_to_an_offset_or_to_the_end(server: TestedServer, admin: Admin, three: str) -> None:
    write(server, three, 0, 0, 1)
    assert admin.delete_records(three, {0: 1, 1: HIGH_WATERMARK}) == {0: 1, 1: 1}
    assert admin.earliest(three) == {0: 1, 1: 1, 2: 0}
    with pytest.raises(ServerError) as caught:
        admin.delete_records(three, {0: 99})
    assert code_of(caught) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_groups_lag_is_seen_and_the_group_is_moved_and_deleted(
    server: TestedServer, admin: Admin, three: str
) -> None:
    group = f"group-of-{three}"
    write(server, three, 0, 0, 0)
    commit(server, group, three)
    assert group in {found.name for found in admin.groups()}
    assert (admin.describe_group(group).state, admin.describe_group(group).members) == ("Empty", ())
    (entry,) = (entry for entry in admin.group_offsets(group) if entry.partition == 0)
    assert (entry.committed, entry.end, entry.lag) == (1, 3, 2)

    expected = (OffsetChange(three, 0, 1, 0),)  # type: ignore[arg-type]
    assert admin.reset_group(group, three, EARLIEST, partitions=[0], dry_run=True) == expected
    assert admin.reset_group(group, three, EARLIEST, partitions=[0]) == expected
    admin.set_group_offsets(group, three, {0: 2})
    (entry,) = (entry for entry in admin.group_offsets(group) if entry.partition == 0)
    assert entry.lag == 1

    admin.delete_group(group)
    with pytest.raises(ServerError, match="there is no group") as caught:
        admin.describe_group(group)
    assert code_of(caught) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_with_a_member_shows_who_has_what_and_cannot_be_moved(
    server: TestedServer, admin: Admin, three: str
) -> None:
    group = f"group-of-{three}"
    write(server, three, 0)
    with_group = {"bootstrap.servers": server.address, "group.id": group, "client.id": "me", "log_level": 0}
    consumer = Consumer(with_group | {"auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([three])
        assert consumer.consume(1, timeout=60)
        (member,) = admin.describe_group(group).members
        assert member.client_id == "me"
        assert sorted(member.assignment) == [(three, 0), (three, 1), (three, 2)]
        with pytest.raises(ServerError) as caught:
            admin.reset_group(group, three, EARLIEST)
        assert code_of(caught) is ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(ServerError) as caught:
            admin.delete_group(group)
        assert code_of(caught) is ErrorCode.NON_EMPTY_GROUP
    finally:
        consumer.close()


def test_a_group_may_be_given_offsets_before_its_first_member_comes(
    server: TestedServer, admin: Admin, three: str
) -> None:
    group = f"group-of-{three}"
    write(server, three, 0, 0)
    admin.reset_group(group, three, LATEST, partitions=[0])
    assert [entry.committed for entry in admin.group_offsets(group)] == [2]
