"""Attacks with long lists: small requests for large answers, and requests that take long to decode or to work off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from struct import pack
from typing import Any

import pytest

from fencepost.errors import ErrorCode
from fencepost.wire import frame
from fencepost.wire.primitives import uvarint
from tests.support.attacks import MIB, Siege
from tests.support.batches import batch
from tests.support.raw import FETCH, LIST_OFFSETS, METADATA, PRODUCE, ConnectionEnded, RawClient

pytestmark = pytest.mark.hostile

OFFSET_COMMIT = 8
OFFSET_FETCH = 9
FIND_COORDINATOR = 10
JOIN_GROUP = 11
LEAVE_GROUP = 13
DESCRIBE_GROUPS = 15
DELETE_TOPICS = 20
DELETE_RECORDS = 21
OFFSET_FOR_LEADER_EPOCH = 23
ADD_PARTITIONS_TO_TXN = 24
WRITE_TXN_MARKERS = 27
DESCRIBE_CONFIGS = 32
DELETE_GROUPS = 42
DESCRIBE_PRODUCERS = 61
DESCRIBE_TRANSACTIONS = 65
CONSUMER_GROUP_DESCRIBE = 69

BIG = "big"
PARTITIONS = 10_000
WITHOUT = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}


def create_big_topic(siege: Siege) -> None:
    siege.create_topic(BIG, PARTITIONS)


def ask(client: RawClient, key: int, version: int, **fields: Any) -> Any:
    """The answer, or None if the server would rather close the connection."""
    with suppress(ConnectionEnded, OSError):
        return client.call(key, version, **fields)
    return None


@pytest.mark.parametrize("version", [1, 12])
def test_a_topic_that_is_named_many_times_is_answered_once(siege: Siege, version: int) -> None:
    create_big_topic(siege)
    with siege.attack(f"Metadata v{version}: a topic of 10,000 partitions 300 times"), siege.connect() as client:
        for _ in range(siege.size(2, 20)):
            answer = client.call(METADATA, version, topics=[{"name": BIG}] * 300, **WITHOUT)
            assert [len(topic.partitions) for topic in answer.topics] == [PARTITIONS]


def test_many_clients_that_want_all_metadata_share_one_answer(siege: Siege) -> None:
    create_big_topic(siege)
    with siege.attack("Metadata: all of 10,000 partitions, by many clients"):
        clients = [siege.connect() for _ in range(siege.size(10, 200))]
        for number, client in enumerate(clients):
            client.send(METADATA, 9 if number % 2 else 12, topics=None, **WITHOUT)
        for client in clients:
            assert sum(len(topic.partitions) for topic in client.receive()[1].topics) == PARTITIONS + 1
            client.close()


def test_what_is_kept_of_metadata_is_bounded(siege: Siege) -> None:
    create_big_topic(siege)
    with siege.attack("Metadata: a large topic, each time beside another one"), siege.connect() as client:
        for number in range(siege.size(20, 500)):
            missing = [{"name": f"not/there-{number}"}]
            assert len(client.call(METADATA, 4, topics=[{"name": BIG}, *missing]).topics) == 2


MANY: dict[str, tuple[int, int, Callable[[int], dict[str, Any]]]] = {
    "Metadata v1": (METADATA, 1, lambda n: {"topics": [{"name": f"/{i}"} for i in range(n)]}),
    "OffsetFetch v8": (OFFSET_FETCH, 8, lambda n: {"groups": [{"group_id": f"{i}", "topics": None} for i in range(n)]}),
    "OffsetFetch v2": (
        OFFSET_FETCH, 2, lambda n: {"group_id": "g", "topics": [{"name": BIG, "partition_indexes": list(range(n))}]}
    ),
    "FindCoordinator v4": (
        FIND_COORDINATOR, 4, lambda n: {"key_type": 0, "coordinator_keys": [f"{i}" for i in range(n)]}
    ),
    "DescribeGroups v2": (DESCRIBE_GROUPS, 2, lambda n: {"groups": [f"{i}" for i in range(n)]}),
    "DeleteGroups v2": (DELETE_GROUPS, 2, lambda n: {"groups_names": [f"{i}" for i in range(n)]}),
    "LeaveGroup v4": (
        LEAVE_GROUP, 4, lambda n: {"group_id": "g", "members": [{"member_id": f"{i}"} for i in range(n)]}
    ),
    "DeleteTopics v5": (DELETE_TOPICS, 5, lambda n: {"topic_names": [f"{i}" for i in range(n)], "timeout": 1000}),
    "DescribeConfigs v4": (
        DESCRIBE_CONFIGS,
        4,
        lambda n: {
            "resources": [
                {"resource_type": 2, "resource_name": BIG if i % 2 else f"{i}", "configuration_keys": None}
                for i in range(n)
            ],
            "include_synonyms": True,
            "include_documentation": True,
        },
    ),
    "DescribeTransactions v0": (DESCRIBE_TRANSACTIONS, 0, lambda n: {"transactional_ids": [f"{i}" for i in range(n)]}),
    "ConsumerGroupDescribe v0": (
        CONSUMER_GROUP_DESCRIBE,
        0,
        lambda n: {"group_ids": [f"{i}" for i in range(n)], "include_authorized_operations": False},
    ),
    "DescribeProducers v0": (
        DESCRIBE_PRODUCERS, 0, lambda n: {"topics": [{"name": "no", "partition_indexes": list(range(n))}]}
    ),
    "ListOffsets v1": (
        LIST_OFFSETS,
        1,
        lambda n: {
            "replica_id": -1,
            "topics": [{"name": "no", "partitions": [{"partition_index": i, "timestamp": -1} for i in range(n)]}],
        },
    ),
    "DeleteRecords v0": (
        DELETE_RECORDS,
        0,
        lambda n: {
            "topics": [{"name": "no", "partitions": [{"partition_index": i, "offset": -1} for i in range(n)]}],
            "timeout": 1000,
        },
    ),
    "AddPartitionsToTxn v3": (
        ADD_PARTITIONS_TO_TXN,
        3,
        lambda n: {
            "v3_and_below_transactional_id": "t",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": BIG, "partitions": list(range(n))}],
        },
    ),
    "WriteTxnMarkers v1": (
        WRITE_TXN_MARKERS,
        1,
        lambda n: {
            "markers": [
                {
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "transaction_result": False,
                    "topics": [{"name": "no", "partition_indexes": list(range(n))}],
                    "coordinator_epoch": 0,
                }
            ]
        },
    ),
    "OffsetCommit v8": (
        OFFSET_COMMIT,
        8,
        lambda n: {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "name": BIG,
                    "partitions": [
                        {"partition_index": i, "committed_offset": 1, "committed_metadata": ""} for i in range(n)
                    ],
                }
            ],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MANY))
def test_a_long_list_is_worked_off_in_pieces(siege: Siege, name: str) -> None:
    create_big_topic(siege)
    key, version, fields = MANY[name]
    with siege.attack(f"{name}: a long list"), siege.connect() as client:
        for _ in range(siege.size(1, 5)):
            assert ask(client, key, version, **fields(siege.size(20_000, 40_000))) is not None


TINY: dict[str, tuple[int, int, bytes]] = {
    "Metadata v1 of empty names": (METADATA, 1, pack(">i", (MIB - 100) // 2) + bytes(MIB - 100)),
    "DescribeGroups v0 of empty names": (DESCRIBE_GROUPS, 0, pack(">i", (MIB - 100) // 2) + bytes(MIB - 100)),
    "DescribeGroups v5 of empty names": (
        DESCRIBE_GROUPS, 5, uvarint(MIB - 100 + 1) + b"\1" * (MIB - 100) + b"\0\0"
    ),
    "FindCoordinator v4 of empty keys": (
        FIND_COORDINATOR, 4, b"\0" + uvarint(MIB - 100 + 1) + b"\1" * (MIB - 100) + b"\0"
    ),
    "OffsetFetch v8 of groups without a name": (
        OFFSET_FETCH, 8, uvarint(MIB // 4 + 1) + b"\1\1\0" * (MIB // 4) + b"\0\0"
    ),
    "Fetch v4 of topics without a name": (
        FETCH, 4, pack(">iiiib", -1, 0, 0, 0, 0) + pack(">i", MIB // 8) + bytes(6) * (MIB // 8)
    ),
    "Produce v9 of partitions without a batch": (
        PRODUCE, 9, b"\0" + pack(">hi", -1, 1000) + b"\2\2x" + uvarint(MIB // 8 + 1) + bytes(6) * (MIB // 8) + b"\0\0"
    ),
    "JoinGroup v5 of protocols without a name": (
        JOIN_GROUP,
        5,
        pack(">h1siihh8s", 1, b"g", 10_000, 10_000, 0, -1, b"\0\x06consum")[:-8]
        + pack(">h8s", 8, b"consumer") + pack(">i", MIB // 8) + bytes(6) * (MIB // 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(TINY))
def test_a_list_of_next_to_nothing_is_refused_before_it_is_decoded(siege: Siege, name: str) -> None:
    key, version, body = TINY[name]
    with siege.attack(name):
        for _ in range(siege.size(2, 20)):
            with siege.connect() as client:
                client.send_frame(client.frame_of(key, version, body))
                assert client.is_closed_by_server()


def test_tagged_fields_without_end_are_refused(siege: Siege) -> None:
    with siege.attack("a header of a million tagged fields"):
        for _ in range(siege.size(2, 20)):
            with siege.connect() as client:
                head = frame.request_head(PRODUCE, 9, 1, "attacker")[:-1]
                with suppress(OSError):
                    client.send_frame(head + uvarint(4 * MIB) + bytes(8 * MIB))
                assert client.is_closed_by_server()


def test_many_batches_in_one_request_are_appended_in_pieces(siege: Siege) -> None:
    create_big_topic(siege)
    count = siege.size(500, 5000)
    with siege.attack(f"Produce: {count} partitions in one request"), siege.connect() as client:
        client.send_produce_many({BIG: dict.fromkeys(range(count), batch([b"x"]))})
        answer = client.receive()[1]
        assert {row.error_code for row in answer.topics[0].partitions} == {ErrorCode.NONE}
        client.send_produce_many({BIG: dict.fromkeys(range(count), batch([b"x"]))})
        answer = client.receive()[1]
        assert [row.base_offset for row in answer.topics[0].partitions] == [1] * count


def test_committed_text_is_not_multiplied(siege: Siege) -> None:
    """The text that is committed with an offset may have 4 KiB, and the name of its partition four bytes."""
    topic = "bystander"
    with siege.connect() as client:
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 4096}
        client.call(
            OFFSET_COMMIT, 8,
            group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[{"name": topic, "partitions": [row]}],
        )  # fmt: skip
        with siege.attack("OffsetFetch: one partition over and over"):
            asked = [{"name": topic, "partition_indexes": [0] * 40_000}] * siege.size(1, 5)
            for _ in range(siege.size(1, 10)):
                answer = client.call(OFFSET_FETCH, 5, group_id="g", topics=asked)
                assert [len(topic.partitions) for topic in answer.topics] == [1]
