"""Consumer groups over the wire, request by request, on our server and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.group_client import (
    DELETE_GROUPS,
    FIND_COORDINATOR,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_DELETE,
    OFFSET_FETCH,
    GroupMember,
    commit,
    delete_group,
    describe,
    fetch_offsets,
)
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
NewMember = Callable[..., GroupMember]


@pytest.fixture
def new_member(server: TestedServer, group: str, name: str) -> Iterator[NewMember]:
    """Makes members of the group, each with a connection of its own."""
    with ExitStack() as stack:

        def make(instance_id: str | None = None, group_id: str = group) -> GroupMember:
            connection = stack.enter_context(server.connect())
            return GroupMember(connection, group_id, name, instance_id=instance_id)

        yield make


def pair(new_member: NewMember, *instances: str) -> tuple[GroupMember, GroupMember]:
    """A stable group of two: the leader and the follower."""
    first, second = new_member(*instances[:1]), new_member(*instances[1:])
    first.enter()
    if second.instance_id is None:
        second.ask_for_id()
    second.send_join()
    while first.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    first.join()
    second.receive_join()
    leader, follower = (first, second) if first.leader == first.member_id else (second, first)
    follower.send_sync()
    assert leader.sync({leader.member_id: b"L", follower.member_id: b"F"}).assignment == b"L"
    assert follower.client.receive()[1].assignment == b"F"
    return leader, follower


# --- FindCoordinator ---


@pytest.mark.parametrize("version", range(7))
def test_every_version_finds_this_node(server: TestedServer, client: RawClient, group: str, version: int) -> None:
    answer = client.call(FIND_COORDINATOR, version, key=group, key_type=0, coordinator_keys=[group])
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id) == (NONE, 1)
    assert f"{found.host}:{found.port}" == server.address


def test_several_coordinators_are_found_at_once(client: RawClient, group: str) -> None:
    answer = client.call(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[group, "another"])
    assert [found.key for found in answer.coordinators] == [group, "another"]


# --- JoinGroup and SyncGroup ---


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins(new_member: NewMember, version: int) -> None:
    member = new_member()
    answer = member.join(version)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (NONE, 1, "range")
    assert answer.leader == answer.member_id
    assert [each.member_id for each in answer.members] == [member.member_id]
    assert answer.members[0].metadata == member.protocols[0]["metadata"]


@pytest.mark.parametrize("version", range(6))
def test_every_version_syncs(new_member: NewMember, version: int) -> None:
    member = new_member()
    member.join()
    answer = member.sync({member.member_id: b"mine"}, version)
    assert (answer.error_code, answer.assignment) == (NONE, b"mine")


def test_a_dynamic_member_is_first_told_its_id(new_member: NewMember) -> None:
    member = new_member()
    member.send_join()
    answer = member.receive_join()
    assert (answer.error_code, answer.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
    assert answer.member_id.startswith("raw-")


def test_a_second_member_starts_a_rebalance_and_the_leader_learns_of_both(new_member: NewMember) -> None:
    leader, follower = pair(new_member)
    assert leader.generation == follower.generation == 2
    assert leader.heartbeat() is follower.heartbeat() is NONE


def test_only_the_leader_is_told_the_members(new_member: NewMember) -> None:
    first, second = new_member(), new_member()
    first.enter()
    second.ask_for_id()
    second.send_join()
    while first.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
        pass
    answers = [first.join(), second.receive_join()]
    by_size = sorted(len(answer.members) for answer in answers)
    assert by_size == [0, 2]
    assert {answer.leader for answer in answers} == {answer.member_id for answer in answers if len(answer.members) == 2}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_makes_no_sense_is_refused(new_member: NewMember, fields: dict[str, Any], error: ErrorCode) -> None:
    member = new_member()
    member.send_join(**fields)
    assert member.receive_join().error_code == error


@pytest.mark.parametrize("fields", [{"protocols": [{"name": "other", "metadata": b""}]}, {"protocol_type": "connect"}])
def test_nothing_in_common_is_refused(new_member: NewMember, fields: dict[str, Any]) -> None:
    new_member().enter()
    stranger = new_member()
    stranger.send_join(**fields)
    assert stranger.receive_join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "no-such-group"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_name": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "other"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_does_not_fit_is_refused(new_member: NewMember, fields: dict[str, Any], error: ErrorCode) -> None:
    member = new_member()
    member.join()
    assert member.sync(**fields).error_code == error


def test_a_follower_that_repeats_itself_gets_the_same_answers(new_member: NewMember) -> None:
    _, follower = pair(new_member)
    answer = follower.join()
    assert (answer.error_code, answer.generation_id) == (NONE, 2)
    assert follower.sync().assignment == b"F"


# --- Heartbeat and LeaveGroup ---


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_heartbeat(new_member: NewMember, version: int) -> None:
    member = new_member()
    member.enter()
    assert member.heartbeat(version) is NONE


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "no-such-group"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"group_instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_of_nobody_is_refused(new_member: NewMember, fields: dict[str, Any], error: ErrorCode) -> None:
    member = new_member()
    member.enter()
    assert member.heartbeat(**fields) is error


@pytest.mark.parametrize("version", range(6))
def test_every_version_leaves(new_member: NewMember, client: RawClient, group: str, version: int) -> None:
    member = new_member()
    member.enter()
    leaving = [{"member_id": member.member_id, "group_instance_id": None, "reason": None}]
    answer = client.call(LEAVE_GROUP, version, group_id=group, member_id=member.member_id, members=leaving)
    assert answer.error_code == NONE
    assert describe(client, group).group_state == "Empty"
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_leaving_makes_the_others_rebalance(new_member: NewMember) -> None:
    leader, follower = pair(new_member)
    assert follower.leave() is NONE
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader.join().generation_id == 3


def test_each_of_several_who_leave_gets_its_own_code(new_member: NewMember, client: RawClient, group: str) -> None:
    leader, follower = pair(new_member)
    members = [
        {"member_id": member_id, "group_instance_id": None, "reason": None}
        for member_id in (leader.member_id, "nobody", follower.member_id)
    ]
    answer = client.call(LEAVE_GROUP, 5, group_id=group, members=members)
    assert answer.error_code == NONE
    assert [each.error_code for each in answer.members] == [NONE, ErrorCode.UNKNOWN_MEMBER_ID, NONE]


def test_leaving_a_group_that_is_not_there(client: RawClient, group: str) -> None:
    members = [{"member_id": "nobody", "group_instance_id": None, "reason": None}]
    answer = client.call(LEAVE_GROUP, 5, group_id=group, members=members)
    assert (answer.error_code, answer.members[0].error_code) == (NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert client.call(LEAVE_GROUP, 1, group_id=group, member_id="nobody").error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- static members (KIP-345) ---


def test_a_static_member_joins_in_one_step(new_member: NewMember) -> None:
    member = new_member("one")
    member.send_join()
    answer = member.receive_join()
    assert answer.error_code == NONE
    assert answer.member_id.startswith("one-")


def test_a_restarted_follower_finds_its_assignment_without_a_rebalance(new_member: NewMember) -> None:
    leader, follower = pair(new_member, "one", "two")
    again = new_member(follower.instance_id)
    answer = again.join()
    assert (answer.error_code, answer.generation_id, answer.leader) == (NONE, 2, leader.member_id)
    assert again.sync().assignment == b"F"
    assert leader.heartbeat() is NONE


def test_the_old_id_of_a_restarted_member_is_fenced(new_member: NewMember, topic: str) -> None:
    _, follower = pair(new_member, "one", "two")
    new_member(follower.instance_id).join()
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert follower.heartbeat() is fenced
    assert follower.sync().error_code == fenced
    assert follower.commit(topic, 1) is fenced
    assert follower.leave() is fenced
    assert follower.join().error_code == fenced


def test_a_restarted_leader_skips_the_assignment(new_member: NewMember) -> None:
    leader, _ = pair(new_member, "one", "two")
    again = new_member(leader.instance_id)
    answer = again.join()
    assert (answer.error_code, answer.skip_assignment, answer.leader) == (NONE, True, answer.member_id)
    assert len(answer.members) == 2
    assert again.sync().assignment == b"L"


def test_an_older_restarted_leader_takes_itself_for_a_follower(new_member: NewMember) -> None:
    leader, _ = pair(new_member, "one", "two")
    answer = new_member(leader.instance_id).join(8)
    assert (answer.error_code, answer.leader, len(answer.members)) == (NONE, leader.member_id, 0)


def test_an_administrator_removes_a_static_member_by_name(new_member: NewMember, client: RawClient, group: str) -> None:
    leader, follower = pair(new_member, "one", "two")
    leaving = {"member_id": "", "group_instance_id": follower.instance_id, "reason": "kicked"}
    answer = client.call(LEAVE_GROUP, 5, group_id=group, members=[leaving])
    assert answer.members[0].error_code == NONE
    assert leader.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


# --- offsets ---


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_commits_by_name(client: RawClient, group: str, topic: str, version: int) -> None:
    assert commit(client, group, topic, 42, metadata="note", version=version) is NONE
    [found] = fetch_offsets(client, group, {topic: [0]}).values()
    assert (found.committed_offset, found.metadata) == (42, "note")


def test_a_commit_by_topic_id(client: RawClient, group: str, name: str) -> None:
    topic_id = client.create_topic(name)
    assert commit(client, group, topic_id, 7, leader_epoch=0, version=10) is NONE
    found = fetch_offsets(client, group, {topic_id: [0]}, version=10)
    assert found[topic_id, 0].committed_offset == 7
    assert found[topic_id, 0].committed_leader_epoch == 0
    assert fetch_offsets(client, group, {name: [0]})[name, 0].committed_offset == 7


def test_an_unknown_topic_id_is_said_so(client: RawClient, group: str) -> None:
    unknown = uuid4()
    assert commit(client, group, unknown, 7, version=10) is ErrorCode.UNKNOWN_TOPIC_ID
    found = fetch_offsets(client, group, {unknown: [0]}, version=10)
    assert found[unknown, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", range(1, 10))
def test_every_version_fetches(client: RawClient, group: str, topic: str, version: int) -> None:
    commit(client, group, topic, 42, metadata="note")
    found = fetch_offsets(client, group, {topic: [0, 1]}, version=version)
    assert (found[topic, 0].committed_offset, found[topic, 0].metadata, found[topic, 0].error_code) == (42, "note", 0)
    assert (found[topic, 1].committed_offset, found[topic, 1].metadata, found[topic, 1].error_code) == (-1, "", 0)


@pytest.mark.parametrize("version", range(2, 10))
def test_all_offsets_of_a_group_can_be_asked_for(client: RawClient, group: str, topic: str, version: int) -> None:
    commit(client, group, topic, 42)
    assert set(fetch_offsets(client, group, None, version=version)) == {(topic, 0)}


def test_a_group_that_is_not_there_has_no_offsets(client: RawClient, group: str, topic: str) -> None:
    assert fetch_offsets(client, group, None) == {}
    assert fetch_offsets(client, group, {topic: [0]})[topic, 0].committed_offset == -1


def test_several_groups_are_asked_at_once(client: RawClient, group: str, topic: str) -> None:
    commit(client, group, topic, 1)
    commit(client, f"{group}-2", topic, 2)
    groups = [{"group_id": each, "topics": None, "member_id": None} for each in (group, f"{group}-2")]
    answer = client.call(OFFSET_FETCH, 9, groups=groups, require_stable=True)
    assert [each.topics[0].partitions[0].committed_offset for each in answer.groups] == [1, 2]


def test_metadata_is_kept_up_to_its_limit(client: RawClient, group: str, topic: str) -> None:
    assert commit(client, group, topic, 1, metadata="x" * 4096) is NONE
    assert commit(client, group, topic, 2, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    [found] = fetch_offsets(client, group, {topic: [0]}).values()
    assert (found.committed_offset, found.metadata) == (1, "x" * 4096)


def test_null_metadata_is_empty_metadata(client: RawClient, group: str, topic: str) -> None:
    assert commit(client, group, topic, 1, metadata=None) is NONE
    assert fetch_offsets(client, group, {topic: [0]})[topic, 0].metadata == ""


def test_the_leader_epoch_is_kept(client: RawClient, group: str, topic: str) -> None:
    commit(client, group, topic, 1, leader_epoch=5)
    assert fetch_offsets(client, group, {topic: [0]})[topic, 0].committed_leader_epoch == 5


@pytest.mark.parametrize("partition", [1, -1])
def test_a_partition_that_is_not_there_is_refused(client: RawClient, group: str, topic: str, partition: int) -> None:
    assert commit(client, group, topic, 1, partition=partition) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(client, group, "no-such-topic", 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_is_not_there_cannot_commit(
    client: RawClient, group: str, topic: str, version: int, error: ErrorCode
) -> None:
    assert commit(client, group, topic, 1, member_id="m", generation=3, version=version) is error


def test_members_commit_in_their_generation_and_nobody_else_does(
    new_member: NewMember, client: RawClient, group: str, topic: str
) -> None:
    member = new_member()
    member.enter()
    assert member.commit(topic, 1) is NONE
    assert member.commit(topic, 2, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert member.commit(topic, 2, member_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(client, group, topic, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_offsets(client, group, {topic: [0]})[topic, 0].committed_offset == 1


def test_a_commit_between_join_and_sync_must_wait(new_member: NewMember, topic: str) -> None:
    member = new_member()
    member.join()
    assert member.commit(topic, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_offsets_go_with_their_topic(client: RawClient, group: str, topic: str) -> None:
    commit(client, group, topic, 1)
    client.call(20, 5, topic_names=[topic], timeout=30_000)
    while fetch_offsets(client, group, None):
        pass


def test_where_readers_are_guarded_only_the_owner_commits(ours: TestedServer, name: str) -> None:
    with ours.connect() as client:
        client.create_topic(name, configs={"fencepost.reader.group": "readers"})
        assert commit(client, "guarded", name, 1) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        client.call(10_000, 0, group="readers", wait_ms=0, resources=[{"name": f"{name}-0", "generation": 1}])
        assert commit(client, "guarded", name, 1) is NONE


# --- administration ---


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists(new_member: NewMember, client: RawClient, group: str, version: int) -> None:
    new_member().enter()
    answer = client.call(LIST_GROUPS, version, states_filter=[], types_filter=[])
    [found] = [each for each in answer.groups if each.group_id == group]
    assert found.protocol_type == "consumer"
    if version >= 4:
        assert found.group_state == "Stable"
    if version >= 5:
        assert found.group_type == "classic"


def test_lists_are_filtered_by_state_and_type(new_member: NewMember, client: RawClient, group: str, topic: str) -> None:
    new_member().enter()
    simple = f"{group}-simple"
    commit(client, simple, topic, 1)

    def listed(**filters: list[str]) -> set[str]:
        answer = client.call(LIST_GROUPS, 5, **{"states_filter": [], "types_filter": [], **filters})
        return {each.group_id for each in answer.groups} & {group, simple}

    assert listed() == {group, simple}
    assert listed(states_filter=["stable"]) == {group}
    assert listed(states_filter=["Empty"]) == {simple}
    assert listed(types_filter=["classic"]) == {group, simple}
    assert listed(types_filter=["Consumer"]) == set()


@pytest.mark.parametrize("version", range(7))
def test_every_version_describes(new_member: NewMember, client: RawClient, group: str, version: int) -> None:
    member = new_member("one")
    member.enter()
    found = describe(client, group, version)
    assert (found.error_code, found.group_state) == (NONE, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    [described] = found.members
    assert (described.member_id, described.client_id, described.client_host) == (member.member_id, "raw", "/127.0.0.1")
    assert described.member_assignment == b"all"
    assert described.member_metadata == member.protocols[0]["metadata"]
    if version >= 4:
        assert described.group_instance_id == "one"


def test_a_group_in_mid_rebalance_shows_no_assignments(new_member: NewMember, client: RawClient, group: str) -> None:
    member = new_member()
    member.join()
    found = describe(client, group)
    assert (found.group_state, found.protocol_data) == ("CompletingRebalance", "")
    assert (found.members[0].member_metadata, found.members[0].member_assignment) == (b"", b"")


def test_a_group_that_is_not_there_is_dead(client: RawClient, group: str) -> None:
    assert (describe(client, group).error_code, describe(client, group).group_state) == (NONE, "Dead")
    assert describe(client, group, 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(3))
def test_a_group_is_deleted_when_nobody_is_in(
    new_member: NewMember, client: RawClient, group: str, topic: str, version: int
) -> None:
    member = new_member()
    member.enter()
    member.commit(topic, 1)
    assert delete_group(client, group, version) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert delete_group(client, group, version) is NONE
    assert delete_group(client, group, version) is ErrorCode.GROUP_ID_NOT_FOUND
    assert fetch_offsets(client, group, None) == {}


def test_several_groups_are_deleted_at_once(client: RawClient, group: str, topic: str) -> None:
    commit(client, group, topic, 1)
    answer = client.call(DELETE_GROUPS, 2, groups_names=[group, "no-such-group"])
    assert {each.group_id: each.error_code for each in answer.results} == {
        group: NONE,
        "no-such-group": ErrorCode.GROUP_ID_NOT_FOUND,
    }


def offset_delete(client: RawClient, group: str, *topics: str, partition: int = 0) -> tuple[ErrorCode, list[ErrorCode]]:
    wanted = [{"name": topic, "partitions": [{"partition_index": partition}]} for topic in topics]
    answer = client.call(OFFSET_DELETE, 0, group_id=group, topics=wanted)
    codes = [ErrorCode.of(each.error_code) for topic in answer.topics for each in topic.partitions]
    return ErrorCode.of(answer.error_code), codes


def test_offsets_are_deleted_unless_members_read_the_topic(
    new_member: NewMember, client: RawClient, group: str, name: str
) -> None:
    client.create_topic(name)
    client.create_topic(f"{name}-other")
    for topic in (name, f"{name}-other"):
        commit(client, group, topic, 1)
    member = new_member()
    member.enter()
    assert offset_delete(client, group, name, f"{name}-other") == (NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE])
    assert set(fetch_offsets(client, group, None)) == {(name, 0)}
    member.leave()
    assert offset_delete(client, group, name) == (NONE, [NONE])
    assert fetch_offsets(client, group, None) == {}


def test_deleting_offsets_of_what_is_not_there(client: RawClient, group: str, topic: str) -> None:
    assert offset_delete(client, group, topic) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    commit(client, group, topic, 1)
    assert offset_delete(client, group, "no-such-topic") == (NONE, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
    assert offset_delete(client, group, topic, partition=5) == (NONE, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])


def test_offsets_of_a_group_of_non_consumers_are_deleted_only_when_it_is_empty(
    new_member: NewMember, client: RawClient, group: str, topic: str
) -> None:
    member = new_member()
    how: dict[str, Any] = {"protocol_type": "connect", "protocols": [{"name": "default", "metadata": b"x"}]}
    assert member.join(**how).error_code == NONE
    member.sync(protocol_type="connect", protocol_name="default")
    assert offset_delete(client, group, topic)[0] is ErrorCode.NON_EMPTY_GROUP
