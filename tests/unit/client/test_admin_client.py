"""Admin: whom it asks, in which versions, and what it makes of the answers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pytest

from fencepost.client.admin.results import NewTopic, OffsetAt, OffsetChange
from fencepost.client.admin_client import EARLIEST, LATEST
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.core.groups.subscription import read_assignment
from fencepost.core.rows import GroupOffset
from fencepost.errors import ErrorCode, ServerError, TimedOut, TlsRefused, Unreachable
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key
from tests.support.fake_cluster import FakeCluster, Handler, Hangs

pytestmark = pytest.mark.unit


def offsets_by(offset: int = 7, *, code: int = 0) -> Handler:
    """ListOffsets: every partition at `offset`."""

    def handle(request: Any, _version: int) -> Mapping[str, Any]:
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": asked.partition_index, "error_code": code, "offset": offset}
                        for asked in topic.partitions
                    ],
                }
                for topic in request.topics
            ]
        }

    return handle


def start_and_end(start: int, end: int) -> Handler:
    """ListOffsets of partitions that go from `start` to `end`; any time is newer than their records."""

    def handle(request: Any, version: int) -> Mapping[str, Any]:
        asked = request.topics[0].partitions[0].timestamp
        return offsets_by({EARLIEST: start, LATEST: end}.get(asked, -1))(request, version)

    return handle


def created(*codes: int, message: str | None = None) -> Handler:
    """CreateTopics: a code for each topic."""

    def handle(request: Any, _version: int) -> Mapping[str, Any]:
        return {
            "topics": [
                {"name": topic.name, "topic_id": None, "error_code": code, "error_message": message, "configs": None}
                for topic, code in zip(request.topics, codes, strict=True)
            ]
        }

    return handle


def coordinator(broker: int, *, code: int = 0) -> Handler:
    """FindCoordinator, in the form of one group and of several."""

    def handle(request: Any, version: int) -> Mapping[str, Any]:
        found = {"node_id": broker, "host": "fake", "port": 9000 + broker, "error_code": code, "error_message": None}
        return {"coordinators": [found | {"key": request.coordinator_keys[0]}]} if version >= 4 else found

    return handle


def committed(*offsets: int, topic: str = "orders") -> Handler:
    """OffsetFetch, in the form of one group and of several."""

    def handle(request: Any, version: int) -> Mapping[str, Any]:
        partitions = [
            {"partition_index": index, "committed_offset": offset, "metadata": "", "error_code": 0}
            for index, offset in enumerate(offsets)
        ]
        found = {"topics": [{"name": topic, "partitions": partitions}], "error_code": 0}
        return {"groups": [found | {"group_id": request.groups[0].group_id}]} if version >= 8 else found

    return handle


def classic_group(state: str, *members: Mapping[str, Any], code: int = 0) -> Handler:
    def handle(request: Any, _version: int) -> Mapping[str, Any]:
        described = {"group_id": request.groups[0], "group_state": state, "protocol_type": "consumer"}
        return {"groups": [described | {"error_code": code, "protocol_data": "range", "members": list(members)}]}

    return handle


def no_consumer_group(request: Any, _version: int) -> Mapping[str, Any]:
    described = {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "group_id": request.group_ids[0], "group_state": ""}
    return {"groups": [described | {"group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": []}]}


def commit_accepted(request: Any, _version: int) -> Mapping[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [{"partition_index": p.partition_index, "error_code": 0} for p in topic.partitions],
            }
            for topic in request.topics
        ]
    }


@pytest.fixture
def groups() -> FakeCluster:
    """Two brokers; the second coordinates an empty group that has committed 3 and 5 of the partitions 2 … 9."""
    cluster = FakeCluster(brokers=2, topics={"orders": [1, 1]})
    cluster.on(Key.FIND_COORDINATOR, coordinator(2))
    cluster.on(Key.CONSUMER_GROUP_DESCRIBE, no_consumer_group)
    cluster.on(Key.DESCRIBE_GROUPS, classic_group("Empty"))
    cluster.on(Key.OFFSET_FETCH, committed(3, 5))
    cluster.on(Key.OFFSET_COMMIT, commit_accepted)
    cluster.on(Key.LIST_OFFSETS, start_and_end(2, 9))
    return cluster


# --- whom it asks ---


def test_each_leader_is_asked_for_the_partitions_it_leads() -> None:
    cluster = FakeCluster(brokers=2, topics={"orders": [1, 2, 1]})
    cluster.on(Key.LIST_OFFSETS, offsets_by(7))
    assert cluster.admin().latest("orders") == {0: 7, 1: 7, 2: 7}
    asked = {
        each.broker: [partition.partition_index for partition in each.request.topics[0].partitions]
        for each in cluster.requests(Key.LIST_OFFSETS)
    }
    assert asked == {1: [0, 2], 2: [1]}


def test_a_leader_that_has_moved_is_looked_up_again() -> None:
    cluster = FakeCluster(brokers=2, topics={"orders": [1]})

    def moved(request: Any, version: int) -> Mapping[str, Any]:
        cluster.topics["orders"] = [2]
        return offsets_by(code=ErrorCode.NOT_LEADER_OR_FOLLOWER)(request, version)

    cluster.on(Key.LIST_OFFSETS, moved, offsets_by(7))
    assert cluster.admin().latest("orders") == {0: 7}
    assert [each.broker for each in cluster.requests(Key.LIST_OFFSETS)] == [1, 2]


def test_a_leader_that_has_died_is_looked_up_again() -> None:
    cluster = FakeCluster(brokers=2, topics={"orders": [1]})

    def died(request: Any, version: int) -> Mapping[str, Any]:
        cluster.topics["orders"] = [2]
        raise Unreachable("nothing listens there")

    cluster.on(Key.LIST_OFFSETS, died, offsets_by(7))
    assert cluster.admin().latest("orders") == {0: 7}
    assert [each.broker for each in cluster.requests(Key.LIST_OFFSETS)] == [1, 2]


def test_a_leader_that_keeps_us_out_is_not_asked_again() -> None:
    cluster = FakeCluster(brokers=2, topics={"orders": [1]})

    def refuses(request: Any, version: int) -> Mapping[str, Any]:
        raise TlsRefused("its certificate is not trusted")

    cluster.on(Key.LIST_OFFSETS, refuses)
    with pytest.raises(TlsRefused):
        cluster.admin().latest("orders")
    assert len(cluster.requests(Key.LIST_OFFSETS)) == 1


def test_a_partition_that_never_gets_a_leader_is_named_when_the_time_is_over() -> None:
    cluster = FakeCluster(topics={"orders": [-1]})
    with pytest.raises(ServerError, match="orders-0 has no leader") as caught:
        cluster.admin(request_timeout=0.02).latest("orders")
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE
    assert len(cluster.requests(Key.METADATA)) > 1


def test_an_unknown_topic_is_an_answer_and_not_a_reason_to_wait() -> None:
    cluster = FakeCluster()
    with pytest.raises(ServerError, match="there is no topic 'nope'"):
        cluster.admin().latest("nope")
    assert len(cluster.asked) == 1


def test_describing_a_topic_never_creates_it() -> None:
    cluster = FakeCluster(topics={"orders": [1]})
    cluster.admin().describe_topic("orders")
    assert [each.request.allow_auto_topic_creation for each in cluster.asked] == [False]


def test_a_partition_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ServerError, match="'orders' has no partition 5, only 0 to 1"):
        FakeCluster(topics={"orders": [1, 1]}).admin().offsets("orders", LATEST, partitions=[5])


def test_topics_are_created_by_the_controller_even_when_it_has_just_moved() -> None:
    cluster = FakeCluster(brokers=2, topics={"orders": [1]})

    def moved(request: Any, version: int) -> Mapping[str, Any]:
        cluster.controller = 2
        return created(ErrorCode.NOT_CONTROLLER)(request, version)

    cluster.on(Key.CREATE_TOPICS, moved, created(0))
    cluster.admin().create_topic("orders", 1)
    assert [each.broker for each in cluster.requests(Key.CREATE_TOPICS)] == [1, 2]


# --- topics ---


def test_a_created_topic_has_leaders_when_the_call_returns() -> None:
    cluster = FakeCluster()

    def accepted(request: Any, version: int) -> Mapping[str, Any]:
        cluster.topics["orders"] = [-1]
        return created(0)(request, version)

    def elected(request: Any, version: int) -> Mapping[str, Any]:
        answer = cluster._metadata(request, version)
        cluster.topics["orders"] = [1]
        return answer

    cluster.on(Key.CREATE_TOPICS, accepted)
    before = [cluster._metadata, elected]  # who is the controller?, then still without a leader
    cluster.on(Key.METADATA, *before, cluster._metadata)
    cluster.admin().create_topic("orders", 1)
    assert len(cluster.requests(Key.METADATA)) == 3


def test_a_topic_that_gets_no_leaders_is_reported_as_accepted_but_not_seen() -> None:
    cluster = FakeCluster(topics={"orders": [-1]})
    cluster.on(Key.CREATE_TOPICS, created(0))
    with pytest.raises(TimedOut, match="leaders of orders: accepted, but not visible"):
        cluster.admin(request_timeout=0.02).create_topic("orders", 1)


def test_one_topic_that_fails_does_not_hide_the_others() -> None:
    cluster = FakeCluster(topics={"a": [1]})
    codes = (0, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_CONFIG)
    cluster.on(Key.CREATE_TOPICS, created(*codes, message="the server's words"))
    with pytest.raises(ServerError) as caught:
        cluster.admin().create_topics([NewTopic("a"), NewTopic("b"), NewTopic("c")])
    assert caught.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert caught.value.message == "create topic 'b': the server's words; also 'c': INVALID_CONFIG"


def test_validate_only_does_not_wait_for_a_topic_that_will_never_be() -> None:
    cluster = FakeCluster()
    cluster.on(Key.CREATE_TOPICS, created(0))
    cluster.admin().create_topics([NewTopic("orders", 3, configs={"retention.ms": "1"})], validate_only=True)
    (asked,) = cluster.requests(Key.CREATE_TOPICS)
    (topic,) = asked.request.topics
    assert (topic.num_partitions, topic.replication_factor, asked.request.validate_only) == (3, -1, True)
    assert [(config.name, config.value) for config in topic.configs] == [("retention.ms", "1")]


@pytest.mark.parametrize("version", [1, 5, 6])
def test_topics_are_deleted_by_name_in_the_form_of_each_version(version: int) -> None:
    cluster = FakeCluster()
    cluster.highest[Key.DELETE_TOPICS] = version

    def deleted(_request: Any, _version: int) -> Mapping[str, Any]:
        return {"responses": [{"name": "orders", "topic_id": None, "error_code": 0}]}

    cluster.on(Key.DELETE_TOPICS, deleted)
    cluster.admin().delete_topic("orders")
    (asked,) = cluster.requests(Key.DELETE_TOPICS)
    names = [topic.name for topic in asked.request.topics] if version >= 6 else list(asked.request.topic_names)
    assert names == ["orders"]


def test_topics_are_listed_by_name_without_the_internal_ones() -> None:
    cluster = FakeCluster(topics={"b": [1, 1], "__consumer_offsets": [1], "a": [1]})
    assert [(topic.name, topic.partitions) for topic in cluster.admin().topics()] == [("a", 1), ("b", 2)]
    assert [topic.name for topic in cluster.admin().topics(internal=True)] == ["__consumer_offsets", "a", "b"]


@pytest.mark.parametrize("version", range(1, 14))
def test_metadata_is_read_in_every_version(version: int) -> None:
    cluster = FakeCluster(topics={"orders": [1]})
    cluster.highest[Key.METADATA] = version
    described = cluster.admin().describe_topic("orders")
    assert [(partition.partition, partition.leader) for partition in described.partitions] == [(0, 1)]


def test_producers_show_what_each_partition_knows() -> None:
    cluster = FakeCluster(topics={"orders": [1, 1]})

    def known(request: Any, _version: int) -> Mapping[str, Any]:
        def state(pid: int, transaction: int) -> Mapping[str, Any]:
            state = {"producer_id": pid, "producer_epoch": 1, "last_sequence": 41, "last_timestamp": 1000}
            return state | {"coordinator_epoch": -1, "current_txn_start_offset": transaction}

        return {
            "topics": [
                {
                    "name": "orders",
                    "partitions": [
                        {"partition_index": index, "error_code": 0, "active_producers": [state(9, -1), state(8, 4)]}
                        for index in request.topics[0].partition_indexes
                    ],
                }
            ]
        }

    cluster.on(Key.DESCRIBE_PRODUCERS, known)
    found = cluster.admin().producers("orders", partitions=[1])
    assert [(state.partition, state.pid, state.epoch, state.last_sequence) for state in found] == [
        (1, 8, 1, 41),
        (1, 9, 1, 41),
    ]
    assert [state.transaction_start for state in found] == [4, None]


def test_configs_say_where_each_value_comes_from() -> None:
    cluster = FakeCluster(topics={"orders": [1]})

    def described(_request: Any, _version: int) -> Mapping[str, Any]:
        def entry(name: str, value: str, source: int) -> Mapping[str, Any]:
            entry = {"name": name, "value": value, "config_source": source, "read_only": False, "is_sensitive": False}
            return entry | {"synonyms": [], "config_type": 5, "documentation": None}

        configs = [entry("segment.bytes", "1", 5), entry("retention.ms", "2", 1)]
        result = {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "orders"}
        return {"results": [result | {"configs": configs}]}

    cluster.on(Key.DESCRIBE_CONFIGS, described)
    found = [(entry.name, entry.value, entry.source) for entry in cluster.admin().topic_configs("orders")]
    assert found == [("retention.ms", "2", "topic"), ("segment.bytes", "1", "default")]


# --- groups ---


def test_a_group_is_described_and_read_at_its_coordinator(groups: FakeCluster) -> None:
    admin = groups.admin()
    assert admin.describe_group("billing").coordinator == BrokerNode(2, "fake", 9002)
    assert admin.group_offsets("billing") == (
        GroupOffset("orders", 0, 3, 9),  # type: ignore[arg-type]
        GroupOffset("orders", 1, 5, 9),  # type: ignore[arg-type]
    )
    assert {each.broker for each in groups.requests(Key.OFFSET_FETCH)} == {2}
    assert {each.broker for each in groups.requests(Key.DESCRIBE_GROUPS)} == {2}


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_found_in_every_version(groups: FakeCluster, version: int) -> None:
    groups.highest[Key.FIND_COORDINATOR] = version
    assert groups.admin().describe_group("billing").coordinator.id == 2


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_are_read_in_every_version_and_never_by_topic_id(groups: FakeCluster, version: int) -> None:
    groups.highest[Key.OFFSET_FETCH] = version
    assert [entry.lag for entry in groups.admin().group_offsets("billing")] == [6, 4]
    assert [each.version for each in groups.requests(Key.OFFSET_FETCH)] == [min(version, 9)]


def test_a_coordinator_that_is_still_loading_is_asked_again(groups: FakeCluster) -> None:
    groups.on(Key.FIND_COORDINATOR, coordinator(2, code=ErrorCode.COORDINATOR_NOT_AVAILABLE), coordinator(2))
    assert groups.admin().describe_group("billing").state == "Empty"


def test_offsets_of_a_deleted_topic_have_no_end_and_no_lag(groups: FakeCluster) -> None:
    groups.on(Key.OFFSET_FETCH, committed(3, topic="gone"))
    (entry,) = groups.admin().group_offsets("billing")
    assert (entry.topic, entry.committed, entry.end, entry.lag) == ("gone", 3, None, None)


@pytest.mark.parametrize(("version", "state", "code"), [(5, "Dead", 0), (6, "Dead", ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_group_that_is_not_there_is_an_error_in_old_and_new_versions(
    groups: FakeCluster, version: int, state: str, code: int
) -> None:
    groups.highest[Key.DESCRIBE_GROUPS] = version
    groups.on(Key.DESCRIBE_GROUPS, classic_group(state, code=code))
    with pytest.raises(ServerError, match="there is no group 'nope'") as caught:
        groups.admin().describe_group("nope")
    assert caught.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_server_without_the_new_group_protocol_is_asked_the_old_way(groups: FakeCluster) -> None:
    groups.highest[Key.CONSUMER_GROUP_DESCRIBE] = -1
    assert groups.admin().describe_group("billing").kind == "classic"


def test_a_reset_to_a_time_newer_than_all_records_goes_to_the_end(groups: FakeCluster) -> None:
    changes = groups.admin().reset_group("billing", "orders", 4_000_000_000_000)
    assert changes == (
        OffsetChange("orders", 0, 3, 9),  # type: ignore[arg-type]
        OffsetChange("orders", 1, 5, 9),  # type: ignore[arg-type]
    )
    (asked,) = groups.requests(Key.OFFSET_COMMIT)
    sent = [(p.partition_index, p.committed_offset) for p in asked.request.topics[0].partitions]
    assert (asked.broker, sent) == (2, [(0, 9), (1, 9)])


@pytest.mark.parametrize(("by", "expected"), [(-2, [2, 3]), (-100, [2, 2]), (5, [8, 9]), (0, [3, 5])])
def test_a_shift_stays_between_the_ends_of_the_log(groups: FakeCluster, by: int, expected: list[int]) -> None:
    changes = groups.admin().shift_group("billing", "orders", by)
    assert [(change.partition, change.before, change.after) for change in changes] == [
        (0, 3, expected[0]), (1, 5, expected[1])
    ]  # fmt: skip
    (asked,) = groups.requests(Key.OFFSET_COMMIT)
    assert [partition.committed_offset for partition in asked.request.topics[0].partitions] == expected


def test_a_shift_leaves_partitions_without_a_committed_offset_alone(groups: FakeCluster) -> None:
    assert groups.admin().shift_group("billing", "orders", 1, partitions=[7]) == ()
    assert groups.admin().shift_group("billing", "elsewhere", 1) == ()
    assert not groups.requests(Key.OFFSET_COMMIT)


def test_a_dry_run_shows_the_changes_and_commits_nothing(groups: FakeCluster) -> None:
    changes = groups.admin().reset_group("billing", "orders", EARLIEST, partitions=[1], dry_run=True)
    assert changes == (OffsetChange("orders", 1, 5, 2),)  # type: ignore[arg-type]
    assert not groups.requests(Key.OFFSET_COMMIT)


def test_an_offset_outside_the_log_is_refused_with_the_range(groups: FakeCluster) -> None:
    with pytest.raises(ServerError, match="orders-1 has offsets 2 to 9, 10 is outside"):
        groups.admin().set_group_offsets("billing", "orders", {1: 10})
    assert not groups.requests(Key.OFFSET_COMMIT)


def test_a_group_with_members_is_not_moved_under_their_feet(groups: FakeCluster) -> None:
    member = {"member_id": "m", "client_id": "c", "client_host": "h", "member_metadata": b"", "member_assignment": b""}
    groups.on(Key.DESCRIBE_GROUPS, classic_group("Stable", member))
    with pytest.raises(ServerError, match="'billing' is Stable with 1 member") as caught:
        groups.admin().reset_group("billing", "orders", EARLIEST)
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
    assert not groups.requests(Key.OFFSET_COMMIT)


def test_the_groups_of_all_brokers_are_listed_by_name() -> None:
    cluster = FakeCluster(brokers=2)
    names = iter(["b", "a"])

    def listed(_request: Any, _version: int) -> Mapping[str, Any]:
        group = {"group_id": next(names), "protocol_type": "consumer", "group_state": "Empty", "group_type": "Classic"}
        return {"error_code": 0, "groups": [group]}

    cluster.on(Key.LIST_GROUPS, listed)
    assert [(group.name, group.kind) for group in cluster.admin().groups()] == [("a", "classic"), ("b", "classic")]
    assert [each.broker for each in cluster.requests(Key.LIST_GROUPS)] == [1, 2]


ASSIGNMENT = b"\x00\x01" + b"\x00\x00\x00\x01" + b"\x00\x06orders" + b"\x00\x00\x00\x02" + b"\0\0\0\x03" + b"\0\0\0\x05"


def test_a_classic_members_assignment_is_read() -> None:
    expected = (TopicPartition("orders", 3), TopicPartition("orders", 5))
    assert read_assignment(ASSIGNMENT + b"\xff\xff\xff\xff") == expected


@pytest.mark.parametrize("length", range(len(ASSIGNMENT)))
def test_an_assignment_cut_anywhere_is_taken_for_another_protocols_bytes(length: int) -> None:
    assert read_assignment(ASSIGNMENT[:length]) == ()


@pytest.mark.timeout(60)
def test_an_assignment_that_leads_back_to_itself_is_of_another_protocol() -> None:
    """The leader of a group chooses these bytes, and the HTTP API reads them on the server's loop."""
    head, empty = struct.pack(">hi", 0, 2**31 - 1), struct.pack(">hi", 0, 0)
    assert read_assignment(head + empty + struct.pack(">hi", -6, 0)) == ()


def test_offsets_by_time_carry_partition_and_time() -> None:
    cluster = FakeCluster(topics={"orders": [1]})
    cluster.on(Key.LIST_OFFSETS, offsets_by(7))
    assert cluster.admin().offsets("orders", 1000) == {0: OffsetAt(0, 7, -1)}  # type: ignore[arg-type]


def test_brokers_that_metadata_has_named_are_asked_when_the_only_given_one_hangs() -> None:
    """PROD-7: a user may give one server of a cluster, and that one may be stopped later."""
    cluster = FakeCluster(3, {"orders": [2]})
    answer = cluster.answer

    def hang(broker: int, key: int, version: int, body: bytes) -> bytes:
        if broker == 1:
            raise Hangs
        return answer(broker, key, version, body)

    with cluster.admin() as admin:
        assert [topic.name for topic in admin.topics()] == ["orders"]
        cluster.answer = hang  # type: ignore[method-assign]
        assert [topic.name for topic in admin.topics()] == ["orders"]
