"""Groups of the new protocol (KIP-848) over the wire, on our server and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost.core.groups.subscription import read_assignment, write_assignment
from fencepost.errors import ErrorCode
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.group_client import (
    CONSUMER_GROUP_DESCRIBE,
    LIST_GROUPS,
    OFFSET_FETCH,
    ConsumerMember,
    GroupMember,
    commit,
    delete_group,
    describe,
    fetch_offsets,
)
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
NewMember = Callable[..., ConsumerMember]


@pytest.fixture
def four(client: RawClient, name: str) -> str:
    """A topic with four partitions."""
    client.create_topic(name, partitions=4)
    return name


@pytest.fixture
def new_member(server: TestedServer, group: str, four: str) -> Iterator[NewMember]:
    with ExitStack() as stack:

        def make(member_id: str, **fields: Any) -> ConsumerMember:
            connection = stack.enter_context(server.connect())
            topics = [] if "subscribed_topic_regex" in fields else [four]
            return ConsumerMember(connection, group, member_id, *topics, **fields)

        yield make


def settle(*members: ConsumerMember, sizes: list[int]) -> None:
    """Heartbeats until everyone holds its share."""
    while [len(member.owned) for member in members] != sizes:
        for member in members:
            assert member.beat().error_code == NONE


def indexes(member: ConsumerMember) -> set[int]:
    return {index for _, index in member.owned}


@pytest.mark.parametrize("version", [0, 1])
def test_the_first_member_gets_everything(new_member: NewMember, version: int) -> None:
    member = new_member("a")
    answer = member.beat(version)
    assert answer.error_code == NONE
    assert answer.member_epoch > 0
    assert answer.heartbeat_interval.total_seconds() == 5
    settle(member, sizes=[4])
    assert indexes(member) == {0, 1, 2, 3}


def test_with_version_0_the_server_makes_up_the_id(new_member: NewMember) -> None:
    member = new_member("")
    assert member.beat(0).error_code == NONE
    assert member.member_id


def test_nothing_new_is_not_told_again(new_member: NewMember) -> None:
    member = new_member("a")
    settle(member, sizes=[4])
    answer = member.quick_beat()
    assert (answer.error_code, answer.assignment) == (NONE, None)


def test_a_partition_is_given_on_only_when_it_was_given_up(server: TestedServer, new_member: NewMember) -> None:
    first, second = new_member("a"), new_member("b")
    settle(first, sizes=[4])
    before = first.epoch
    answer = second.beat()
    assert (answer.error_code, second.owned) == (NONE, set())
    soon = server.answer_to("seconds until the next heartbeat of a member that waits for partitions")
    assert answer.heartbeat_interval.total_seconds() == soon
    told = first.quick_beat()
    while told.assignment is None:
        told = first.quick_beat()
    assert told.member_epoch == before, "it stays at its epoch until it has given up what it must"
    kept = {index for topic in told.assignment.topic_partitions for index in topic.partitions}
    assert len(kept) == 2
    second.beat()
    assert second.owned == set()
    settle(first, second, sizes=[2, 2])
    assert indexes(first) == kept
    assert indexes(first) | indexes(second) == {0, 1, 2, 3}
    assert first.epoch == second.epoch == before + 1


def test_what_a_leaving_member_had_goes_to_the_other(new_member: NewMember) -> None:
    first, second = new_member("a"), new_member("b")
    settle(first, second, sizes=[2, 2])
    answer = second.leave()
    assert (answer.error_code, answer.member_epoch) == (NONE, -1)
    settle(first, sizes=[4])


def test_range_is_assigned_when_asked_for(new_member: NewMember) -> None:
    first, second = new_member("a", server_assignor="range"), new_member("b", server_assignor="range")
    settle(first, second, sizes=[2, 2])
    assert {frozenset(indexes(first)), frozenset(indexes(second))} == {frozenset({0, 1}), frozenset({2, 3})}


@pytest.mark.every_run("fencepost")
def test_a_pattern_takes_up_every_topic_that_matches(new_member: NewMember, client: RawClient, four: str) -> None:
    client.create_topic(f"{four}-x", partitions=1)
    member = new_member("a", subscribed_topic_regex=f"{four}.*")
    settle(member, sizes=[5])
    client.create_topic(f"{four}-y", partitions=1)
    settle(member, sizes=[6])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "a("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(
    new_member: NewMember, fields: dict[str, Any], error: ErrorCode
) -> None:
    answer = new_member("a").beat(**fields)
    assert answer.error_code == error
    assert answer.error_message


def test_wrong_epochs_and_strangers_are_told_what_to_do(new_member: NewMember) -> None:
    member = new_member("a")
    settle(member, sizes=[4])
    assert member.quick_beat(member_epoch=member.epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert member.quick_beat(member_id="nobody").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert member.quick_beat().error_code == NONE


def test_a_static_member_comes_back_to_its_partitions(new_member: NewMember) -> None:
    first, second = new_member("a", instance_id="one"), new_member("b", instance_id="two")
    settle(first, second, sizes=[2, 2])
    had, epoch = set(second.owned), second.epoch
    answer = second.leave(-2)
    assert (answer.error_code, answer.member_epoch) == (NONE, -2)
    again = new_member("c", instance_id="two")
    assert again.beat().error_code == NONE
    assert (again.owned, again.epoch) == (had, epoch)
    assert second.quick_beat(member_epoch=epoch).error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_that_has_not_left_is_not_replaced(new_member: NewMember) -> None:
    settle(new_member("a", instance_id="one"), sizes=[4])
    assert new_member("b", instance_id="one").beat().error_code == ErrorCode.UNRELEASED_INSTANCE_ID


def test_offsets_are_committed_and_fetched_at_the_members_epoch(
    new_member: NewMember, client: RawClient, group: str, four: str
) -> None:
    member = new_member("a")
    settle(member, sizes=[4])
    assert member.commit(four, 5) is NONE
    assert member.commit(four, 6, generation=member.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert member.commit(four, 6, member_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(client, group, four, 6) is ErrorCode.UNKNOWN_MEMBER_ID
    own: dict[str, Any] = {"member_id": "a", "member_epoch": member.epoch}
    assert fetch_offsets(client, group, {four: [0]}, **own)[four, 0].committed_offset == 5
    assert fetch_offsets(client, group, {four: [0]})[four, 0].committed_offset == 5
    for sender, error in (
        ({"member_id": "a", "member_epoch": member.epoch + 1}, ErrorCode.STALE_MEMBER_EPOCH),
        ({"member_id": "nobody", "member_epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        wanted = {"group_id": group, "topics": None, **sender}
        [answer] = client.call(OFFSET_FETCH, 9, groups=[wanted], require_stable=False).groups
        assert answer.error_code == error


def test_a_lost_answer_does_not_make_a_lawful_commit_fail(new_member: NewMember, four: str) -> None:
    """KIP-1251: at an older epoch a member commits what it held then, and nothing that it got since."""
    first, second = new_member("a"), new_member("b")
    settle(first, second, sizes=[2, 2])
    epoch, held = first.epoch, indexes(first)
    second.leave()
    while first.quick_beat(member_epoch=epoch).member_epoch == epoch:
        pass  # until the server has moved it on; the member takes no notice
    [old, *_], [new, *_] = sorted(held), sorted({0, 1, 2, 3} - held)
    assert first.commit(four, 5, generation=epoch, partition=old) is NONE
    assert first.commit(four, 5, generation=epoch, partition=new) is ErrorCode.STALE_MEMBER_EPOCH


@pytest.mark.parametrize("version", [0, 1])
def test_the_group_is_described(new_member: NewMember, client: RawClient, group: str, four: str, version: int) -> None:
    member = new_member("a", instance_id="one")
    settle(member, sizes=[4])
    member.beat()
    asked = {"group_ids": [group, "no-such-group"], "include_authorized_operations": False}
    found, missing = client.call(CONSUMER_GROUP_DESCRIBE, version, **asked).groups
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (found.error_code, found.group_state, found.assignor_name) == (NONE, "Stable", "uniform")
    assert found.group_epoch == found.assignment_epoch == member.epoch
    [described] = found.members
    assert (described.member_id, described.instance_id, described.member_epoch) == ("a", "one", member.epoch)
    assert (described.client_id, described.client_host) == ("raw", "/127.0.0.1")
    assert described.subscribed_topic_names == (four,)
    for assignment in (described.assignment, described.target_assignment):
        [topic] = assignment.topic_partitions
        assert (topic.topic_name, sorted(topic.partitions)) == (four, [0, 1, 2, 3])
    if version == 1:
        assert described.member_type == 1


def test_the_group_is_listed_by_its_type(new_member: NewMember, client: RawClient, group: str) -> None:
    member = new_member("a")
    settle(member, sizes=[4])
    answer = client.call(LIST_GROUPS, 5, states_filter=[], types_filter=["consumer"])
    [found] = [each for each in answer.groups if each.group_id == group]
    assert (found.protocol_type, found.group_type) == ("consumer", "consumer")
    assert describe(client, group, 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_deleted_when_nobody_is_in(new_member: NewMember, client: RawClient, group: str, four: str) -> None:
    member = new_member("a")
    settle(member, sizes=[4])
    member.commit(four, 1)
    assert delete_group(client, group) is ErrorCode.NON_EMPTY_GROUP
    member.leave()
    assert delete_group(client, group) is NONE
    assert fetch_offsets(client, group, None) == {}


def test_an_empty_group_may_change_its_protocol(
    new_member: NewMember, server: TestedServer, client: RawClient, group: str, four: str
) -> None:
    member = new_member("a")
    settle(member, sizes=[4])
    member.commit(four, 1)
    member.leave()
    with server.connect() as connection:
        classic = GroupMember(connection, group, four)
        classic.enter()
        assert describe(client, group).group_state == "Stable"
        classic.leave()
    member.epoch = 0
    settle(member, sizes=[4])
    assert fetch_offsets(client, group, {four: [0]})[four, 0].committed_offset == 1


def test_a_group_changes_its_protocol_while_it_has_members(
    new_member: NewMember, server: TestedServer, client: RawClient, group: str, four: str
) -> None:
    with server.connect() as connection:
        classic = GroupMember(connection, group, four)
        assert classic.join().error_code == NONE
        everything = write_assignment(frozenset(TopicPartition(four, index) for index in range(4)))
        assert classic.sync({classic.member_id: everything}).error_code == NONE
        assert classic.commit(four, 1) is NONE

        newcomer = new_member("a")
        assert newcomer.beat().error_code == NONE
        assert newcomer.epoch == classic.generation + 1
        assert newcomer.owned == set(), "the classic member holds everything"
        assert classic.commit(four, 2) is NONE
        assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert share(classic) == {0, 1} or share(classic) == {2, 3}
        settle(newcomer, sizes=[2])
        assert share(classic) | indexes(newcomer) == {0, 1, 2, 3}
        assert classic.heartbeat() is NONE
        answer = client.call(CONSUMER_GROUP_DESCRIBE, 1, group_ids=[group], include_authorized_operations=False)
        assert {member.member_id: member.member_type for member in answer.groups[0].members} == {
            newcomer.member_id: 1,
            classic.member_id: 0,
        }
        generation = classic.generation
        assert classic.commit(four, 3, generation=generation + 1) is ErrorCode.ILLEGAL_GENERATION

        newcomer.leave()
        assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert describe(client, group).group_state == "PreparingRebalance"
        joined = classic.join()
        assert (joined.error_code, joined.leader, joined.generation_id) == (NONE, classic.member_id, generation + 1)
        assert classic.sync({classic.member_id: everything}).error_code == NONE
        assert describe(client, group).group_state == "Stable"
        assert fetch_offsets(client, group, {four: [0]})[four, 0].committed_offset == 2


def share(member: GroupMember) -> set[int]:
    """Joins again, and returns what the server assigns."""
    assert member.join().error_code == NONE
    return {each.partition for each in read_assignment(member.sync().assignment)}


def test_a_group_with_members_that_are_no_consumers_keeps_its_protocol(
    new_member: NewMember, server: TestedServer, group: str, four: str
) -> None:
    with server.connect() as connection:
        other = GroupMember(connection, group, four)
        assert other.join(protocol_type="connect").error_code == NONE
        assert other.sync({other.member_id: b"all"}, protocol_type="connect").error_code == NONE
        newcomer = new_member("a")
        assert newcomer.beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert other.heartbeat() is NONE
        other.leave()
        assert newcomer.beat().error_code == NONE
        other.member_id = ""
        other.send_join(protocol_type="connect")
        assert other.receive_join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_changes_its_protocol_and_keeps_its_partitions(
    new_member: NewMember, server: TestedServer, client: RawClient, group: str, four: str
) -> None:
    with server.connect() as connection:
        classic = GroupMember(connection, group, four, instance_id="one")
        assert classic.join().error_code == NONE
        everything = write_assignment(frozenset(TopicPartition(four, index) for index in range(4)))
        assert classic.sync({classic.member_id: everything}).error_code == NONE
        successor = new_member("a", instance_id="one")
        assert successor.beat().error_code == NONE
        settle(successor, sizes=[4])
        assert classic.heartbeat() is ErrorCode.FENCED_INSTANCE_ID
        classic.member_id = ""
        assert classic.join().error_code == NONE
        assert len(read_assignment(classic.sync().assignment)) == 4
        assert successor.beat().error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_MEMBER_ID)
        assert describe(client, group).group_state == "Stable"
