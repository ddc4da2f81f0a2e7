"""Attacks with claims, and with members of groups, that name as much as they may."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost.core.groups.kip848_messages import MOST_TOPIC_NAMES
from fencepost.core.own.claim_request import MAX_RESOURCES_PER_OWNER
from fencepost.errors import ErrorCode
from tests.support.attacks import Siege
from tests.support.raw import RawClient

pytestmark = pytest.mark.hostile

CONSUMER_GROUP_HEARTBEAT = 68
OWN = 10_000
DESCRIBE_OWNERS = 10_001
LONG = 60_000
NAMES = [f"r{number}" for number in range(MAX_RESOURCES_PER_OWNER)]


def fields(names: list[str], **more: Any) -> dict[str, Any]:
    resources = [{"resource": name, "generation": 0} for name in names]
    return {"group": "siege", "wait_ms": 0, "session_ms": 0, "release": [], "resources": resources, **more}


def claim(client: RawClient, names: list[str], **more: Any) -> None:
    assert client.call(OWN, 1, **fields(names, **more)).error_code == ErrorCode.NONE


def test_claims_of_all_resources_are_worked_off_in_pieces(siege: Siege) -> None:
    with siege.attack("Own: 20,000 resources, released, and taken from one another"), ExitStack() as stack:
        for _ in range(siege.size(2, 10)):
            client = stack.enter_context(siege.connect())
            claim(client, NAMES)
            claim(client, [], release=NAMES)
            claim(client, NAMES)


def test_claims_that_wait_for_all_resources_are_granted_one_after_the_other(siege: Siege) -> None:
    with siege.connect() as owner, ExitStack() as stack:
        claim(owner, NAMES)
        with siege.attack("Own: claims of 20,000 resources that wait, then each ends"):
            waiting = [stack.enter_context(siege.connect()) for _ in range(siege.size(2, 5))]
            for client in waiting:
                client.send(OWN, 1, **fields(NAMES, wait_ms=LONG))
            siege.linger(10)
            owner.close()
            for client in waiting:
                assert client.receive()[1].error_code == ErrorCode.NONE
                client.close()


def test_owners_of_many_names_are_described_in_pieces(siege: Siege) -> None:
    with siege.connect() as owner, siege.connect() as client:
        claim(owner, NAMES)
        with siege.attack("DescribeOwners: 50,000 names"):
            for _ in range(siege.size(1, 10)):
                answer = client.call(DESCRIBE_OWNERS, 1, group=None, resources=[f"r{n}" for n in range(50_000)])
                assert len(answer.owners) == len(answer.newest) == MAX_RESOURCES_PER_OWNER


@pytest.mark.parametrize("count", [MOST_TOPIC_NAMES, 50_000])
def test_members_that_name_many_topics_are_bounded(siege: Siege, count: int) -> None:
    wanted = ErrorCode.NONE if count <= MOST_TOPIC_NAMES else ErrorCode.INVALID_REQUEST
    with siege.attack(f"ConsumerGroupHeartbeat: {count:,} topics by name"), siege.connect() as client:
        for number in range(siege.size(3, 30)):
            answer = client.call(
                CONSUMER_GROUP_HEARTBEAT, 0, group_id=f"siege-{number % 5}", member_id="m", member_epoch=0,
                instance_id=None, rack_id=None, rebalance_timeout=60_000, server_assignor=None, topic_partitions=[],
                subscribed_topic_names=[f"t{each}-{number}" for each in range(count)],
            )  # fmt: skip
            assert answer.error_code == wanted


def test_members_that_name_many_partitions_do_not_stop_the_loop(siege: Siege) -> None:
    """What a member says it holds is read in pieces; what it does not hold changes nothing."""
    fields = dict.fromkeys(("instance_id", "rack_id", "server_assignor"))
    held = [{"topic_id": uuid.UUID(int=topic), "partitions": list(range(1_000))} for topic in range(1, 51)]
    with siege.connect() as client:
        joining = {**fields, "group_id": "siege-held", "member_id": "m", "rebalance_timeout": 60_000}
        names = {"subscribed_topic_names": ["bystander"]}
        joined = client.call(CONSUMER_GROUP_HEARTBEAT, 0, **joining, **names, member_epoch=0, topic_partitions=[])
        assert joined.error_code == ErrorCode.NONE
        with siege.attack("ConsumerGroupHeartbeat: 50,000 partitions held"):
            for _ in range(siege.size(3, 30)):
                answer = client.call(
                    CONSUMER_GROUP_HEARTBEAT, 0, **joining, **names, member_epoch=joined.member_epoch,
                    topic_partitions=held,
                )  # fmt: skip
                assert answer.error_code == ErrorCode.NONE


def test_claimants_that_wait_and_leave_at_once_hold_up_nobody(siege: Siege) -> None:
    count = siege.size(150, 3_000)
    with siege.connect() as owner, ExitStack() as stack:
        claim(owner, ["wanted"])
        waiting = [stack.enter_context(siege.connect()) for _ in range(count)]
        for client in waiting:
            client.send(OWN, 1, **fields(["wanted"], wait_ms=LONG))
        siege.linger(10)
        with siege.attack(f"Own: {count:,} waiting clients that leave at once"):
            for client in waiting:
                client.close()
            siege.linger(20)
            claim(owner, ["wanted"])


def join_consumer_group(client: RawClient, group: str, member: str, **more: Any) -> Any:
    given = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "subscribed_topic_regex"))
    given |= {"group_id": group, "member_id": member, "member_epoch": 0, "rebalance_timeout": 60_000}
    client.send(CONSUMER_GROUP_HEARTBEAT, 1, **{**given, "topic_partitions": [], **more})


def test_members_that_read_a_huge_topic_do_not_stop_the_loop(siege: Siege) -> None:
    count = siege.size(10_000, 100_000)
    siege.create_topic("huge", count)
    with siege.attack(f"ConsumerGroupHeartbeat: members of a topic of {count:,} partitions"), siege.connect() as client:
        for number in range(siege.size(3, 21)):
            join_consumer_group(client, "huge", f"m{number}", subscribed_topic_names=["huge"])
            assert client.receive()[1].error_code == ErrorCode.NONE


def test_members_with_different_subscriptions_do_not_stop_the_loop(siege: Siege) -> None:
    topics, partitions = siege.size((20, 100), (200, 100))
    for number in range(topics):
        siege.create_topic(f"mixed-{number}", partitions)
    members = siege.size(20, 100)
    with (
        siege.attack(f"ConsumerGroupHeartbeat: {members} members, {topics * partitions:,} partitions"),
        siege.connect() as client,
    ):
        for number in range(members):
            names = [f"mixed-{each}" for each in range(topics) if each % (number % 7 + 2)]
            join_consumer_group(client, "mixed", f"m{number}", subscribed_topic_names=names)
        for _ in range(members):
            assert client.receive()[1].error_code == ErrorCode.NONE
