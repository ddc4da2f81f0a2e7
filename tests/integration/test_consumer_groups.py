"""Groups of the new protocol (KIP-848) over the wire, on our server and on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost.errors import ErrorCode
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


def test_a_partition_is_given_on_only_when_it_was_given_up(new_member: NewMember) -> None:
    first, second = new_member("a"), new_member("b")
    settle(first, sizes=[4])
    before = first.epoch
    answer = second.beat()
    assert (answer.error_code, second.owned) == (NONE, set())
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


def test_a_classic_group_rejects_a_new_protocol_member_that_it_cannot_serve(
    ours: TestedServer,
) -> None:
    """Kafka can migrate a group with members; here one waits until it is empty."""
    with ours.connect() as first, ours.connect() as second:
        classic = GroupMember(first, "not-migrated", "t")
        classic.enter()
        newcomer = ConsumerMember(second, "not-migrated", "a", "t")
        assert newcomer.beat().error_code == ErrorCode.GROUP_ID_NOT_FOUND
        classic.leave()
        assert newcomer.beat().error_code == NONE
        assert classic.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        classic.member_id = ""
        classic.send_join()
        assert classic.receive_join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
