"""Groups of the new protocol (KIP-848): epochs, targets, and the way of each member from one to the next."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.groups.assignors import PartitionId, Partitions
from fencepost.core.groups.kip848 import SOON
from fencepost.core.groups.kip848_messages import LEAVE_STATIC_EPOCH, ConsumerGroupState, Heartbeat, MemberState
from fencepost.errors import ErrorCode
from tests.support.kip848_group import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    ConsumerGroupUnderTest,
    settle,
    some_topics,
)

pytestmark = pytest.mark.unit


def parts(topic: str, *indexes: int) -> Partitions:
    return frozenset(PartitionId(some_topics(**{topic: 1})[topic].topic_id, index) for index in indexes)


@pytest.fixture
def server() -> ConsumerGroupUnderTest:
    return ConsumerGroupUnderTest(some_topics(t=4, u=2))


def state(server: ConsumerGroupUnderTest) -> ConsumerGroupState:
    return server.group.state


class TestComing:
    def test_who_waits_for_others_asks_again_soon_and_less_often_with_time(
        self, server: ConsumerGroupUnderTest
    ) -> None:
        a, b = Client(server, "a", "t"), Client(server, "b", "t")
        assert a.beat().again_within is None
        assert b.beat().again_within == SOON
        server.advance(4_000)
        assert b.beat().again_within == 1_000
        for client in (a, a, b):
            last = client.beat()
        assert last.again_within is None, "it has what it waited for"

    def test_a_member_that_repeats_its_join_gets_all_it_has(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", "t")
        first = client.beat()
        client.epoch = 0
        assert client.beat() == first

    def test_a_lost_answer_does_no_harm(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t")
        a.beat()
        b = Client(server, "b", "u")
        b.beat()
        before = (a.epoch, a.owned, a._reported)
        a.beat()
        assert a.epoch == 2
        a.epoch, a.owned, a._reported = before
        a._reported = None
        assert a.beat().error is ErrorCode.NONE
        assert a.epoch == 2

    def test_a_topic_that_does_not_exist_yet_is_assigned_when_it_does(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", "later")
        assert client.beat().assignment == frozenset()
        server.change_topics(some_topics(t=4, u=2, later=3))
        assert client.beat().assignment == parts("later", 0, 1, 2)

    def test_new_partitions_are_assigned(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", "u")
        client.beat()
        server.change_topics(some_topics(t=4, u=3))
        assert client.beat().assignment == parts("u", 0, 1, 2)

    def test_a_topic_nobody_reads_changes_nothing(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", "u")
        client.beat()
        server.change_topics(some_topics(t=40, u=2))
        client.beat()
        assert server.group.epoch == 1

    def test_a_deleted_topic_is_taken_away(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", "t", "u")
        client.beat()
        server.change_topics(some_topics(t=4))
        settle(client)
        assert client.owned == parts("t", 0, 1, 2, 3)

    def test_another_subscription_is_another_assignment(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", "t")
        client.beat()
        client.resubscribe("u")
        settle(client)
        assert client.owned == parts("u", 0, 1)

    def test_a_full_group_takes_nobody_in(self) -> None:
        server = ConsumerGroupUnderTest(some_topics(t=1), max_size=1)
        Client(server, "a", "t").beat()
        assert Client(server, "b", "t").beat().error is ErrorCode.GROUP_MAX_SIZE_REACHED


class TestAssignors:
    def test_the_majority_decides(self, server: ConsumerGroupUnderTest) -> None:
        a, b = Client(server, "a", "t", "u", assignor="range"), Client(server, "b", "t", "u")
        settle(a, b)
        assert server.group.assignor == "range"
        assert a.owned == parts("t", 0, 1) | parts("u", 0)

    def test_an_unknown_one_is_refused_by_name(self, server: ConsumerGroupUnderTest) -> None:
        result = Client(server, "a", "t", assignor="mine").beat()
        assert result.error is ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform, range" in (result.message or "")


class TestExpressions:
    """Subscriptions by regular expression, heartbeat v1."""

    def test_every_topic_that_matches_as_a_whole_is_read(self, server: ConsumerGroupUnderTest) -> None:
        server.change_topics(some_topics(ta=1, tb=1, xta=1))
        assert Client(server, "a", topic_regex="t.").beat().assignment == parts("ta", 0) | parts("tb", 0)

    def test_an_expression_can_be_taken_back(self, server: ConsumerGroupUnderTest) -> None:
        client = Client(server, "a", topic_regex="t")
        client.beat()
        client.send(topic_regex="", topic_names=frozenset({"u"}))
        settle(client)
        assert client.owned == parts("u", 0, 1)

    def test_it_matches_only_what_the_member_may_describe(self, server: ConsumerGroupUnderTest) -> None:
        topics = some_topics(ta=1, tb=1, tc=1)
        server.change_topics(topics, lambda who, host, name: who == "User:a" or name == "ta")
        a = Client(server, "a", topic_regex="t.", principal="User:a")
        b = Client(server, "b", topic_regex="t.", principal="User:b")
        settle(a, b)
        assert b.owned <= parts("ta", 0)
        assert a.owned | b.owned == parts("ta", 0) | parts("tb", 0) | parts("tc", 0)
        server.crash()
        server.change_topics(topics, lambda who, host, name: name == "ta")
        settle(a, b)
        assert a.owned | b.owned == parts("ta", 0)

    def test_a_right_that_one_member_loses_goes_to_another(self, server: ConsumerGroupUnderTest) -> None:
        topics = some_topics(ta=1)
        a = Client(server, "a", topic_regex="t.", principal="User:a")
        server.change_topics(topics)
        settle(a)
        b = Client(server, "b", topic_regex="t.", principal="User:b")
        settle(a, b)
        [loser] = [each for each in (a, b) if each.owned]
        server.change_topics(topics, lambda who, host, name: who != loser.principal)
        settle(a, b)
        assert not loser.owned
        assert a.owned | b.owned == parts("ta", 0)

    def test_another_principal_does_not_keep_what_the_last_one_could_see(self, server: ConsumerGroupUnderTest) -> None:
        server.change_topics(some_topics(ta=1), lambda who, host, name: who == "User:a")
        client = Client(server, "a", topic_regex="t.", principal="User:a")
        settle(client)
        assert client.owned == parts("ta", 0)
        client.principal = "User:b"
        settle(client)
        assert not client.owned

    @pytest.mark.parametrize("expression", ["t(", r"(t)\1", "(?=t)t"])
    def test_a_broken_one_or_one_that_could_take_forever_is_refused(
        self, server: ConsumerGroupUnderTest, expression: str
    ) -> None:
        assert Client(server, "a", topic_regex=expression).beat().error is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert server.group.is_empty


class TestGoing:
    def test_a_silent_member_is_removed_after_its_session(self, server: ConsumerGroupUnderTest) -> None:
        a, b = Client(server, "a", "t"), Client(server, "b", "t")
        settle(a, b)
        server.advance(SESSION_MS - 1)
        a.beat()
        assert server.advance(1) == ["b"]
        settle(a)
        assert a.owned == parts("t", 0, 1, 2, 3)
        assert b.beat().error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_who_does_not_give_up_its_partitions_in_time_is_removed(self, server: ConsumerGroupUnderTest) -> None:
        a, b = Client(server, "a", "t"), Client(server, "b", "t")
        a.beat()
        a.slow = True
        b.beat()
        a.beat()
        assert state(server) is ConsumerGroupState.RECONCILING
        removed = []
        for _ in range(REBALANCE_MS // 5_000):
            removed += server.advance(5_000)
            a.beat()
            b.beat()
        assert removed == ["a"]
        assert b.owned >= parts("t", 0, 1)

    def test_the_last_one_leaves_an_empty_group(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t")
        a.beat()
        a.leave()
        assert state(server) is ConsumerGroupState.EMPTY
        assert server.group.next_deadline() is None
        assert server.store.members == {}

    def test_a_topic_that_only_a_former_member_read_is_of_no_interest_any_more(
        self, server: ConsumerGroupUnderTest
    ) -> None:
        a, b = Client(server, "a", "t"), Client(server, "b", "u")
        settle(a, b)
        b.leave()
        settle(a)
        epoch = server.group.epoch
        server.change_topics(some_topics(t=4, u=3))
        settle(a)
        assert server.group.epoch == epoch

    def test_leaving_twice_is_an_error(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t")
        a.beat()
        a.leave()
        assert a.leave().error is ErrorCode.UNKNOWN_MEMBER_ID


class TestFencing:
    def test_an_older_epoch_is_fenced_if_it_holds_what_it_may_not(self, server: ConsumerGroupUnderTest) -> None:
        a, b = Client(server, "a", "t"), Client(server, "b", "t")
        settle(a, b)
        assert server.send("a", 1, owned=parts("t", 0, 1, 2, 3)).error is ErrorCode.FENCED_MEMBER_EPOCH
        assert server.send("a", 1).error is ErrorCode.FENCED_MEMBER_EPOCH

    def test_a_fenced_member_that_joins_again_gets_its_part_back(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t")
        a.beat()
        a.epoch = 7
        assert a.beat().error is ErrorCode.FENCED_MEMBER_EPOCH
        a.beat()
        assert a.owned == parts("t", 0, 1, 2, 3)

    @pytest.mark.parametrize(
        ("epoch", "how"),
        [
            (0, {"topic_names": frozenset("t"), "owned": frozenset()}),
            (0, {"topic_names": frozenset("t"), "rebalance_timeout_ms": 1}),
            (0, {"topic_names": frozenset("t"), "rebalance_timeout_ms": 1, "owned": parts("t", 0)}),
            (0, {"owned": frozenset(), "rebalance_timeout_ms": 1}),
            (1, {"instance_id": ""}),
            (1, {"rack_id": ""}),
            (1, {"topic_names": frozenset(f"t{number}" for number in range(10_001))}),
            (-2, {}),
            (-3, {}),
        ],
    )
    def test_a_request_that_makes_no_sense_is_invalid(
        self, server: ConsumerGroupUnderTest, epoch: int, how: dict[str, Any]
    ) -> None:
        result = server.send("a", epoch, **how)
        assert result.error is ErrorCode.INVALID_REQUEST
        assert result.message

    def test_a_member_needs_a_name(self, server: ConsumerGroupUnderTest) -> None:
        assert server.send("", 1).error is ErrorCode.INVALID_REQUEST


class TestStaticMembers:
    def test_who_said_that_it_will_be_back_must_join_anew(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t", instance_id="one")
        a.beat()
        a.leave(LEAVE_STATIC_EPOCH)
        a.epoch = 1
        assert a.beat().error is ErrorCode.FENCED_MEMBER_EPOCH
        a.epoch = 0
        a.beat()
        assert a.owned == parts("t", 0, 1, 2, 3)

    def test_who_does_not_come_back_loses_its_place_after_a_session(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t", instance_id="one")
        a.beat()
        a.leave(LEAVE_STATIC_EPOCH)
        assert server.advance(SESSION_MS) == ["a"]

    def test_an_instance_that_is_not_there_is_unknown(self, server: ConsumerGroupUnderTest) -> None:
        assert server.send("a", 1, instance_id="one").error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_restart_with_another_subscription_is_a_change(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t", instance_id="one")
        a.beat()
        a.leave(LEAVE_STATIC_EPOCH)
        b = Client(server, "b", "u", instance_id="one")
        settle(b)
        assert b.owned == parts("u", 0, 1)


class TestOffsets:
    def test_what_was_released_cannot_be_committed_at_the_epoch_before(self, server: ConsumerGroupUnderTest) -> None:
        a, b = Client(server, "a", "t", "u"), Client(server, "b", "t", "u")
        settle(a)
        before, held = a.epoch, a.owned
        settle(a, b)
        assert a.owned < held
        assert server.group.stale_commits("a", before, held) == held - a.owned

    def test_anyone_may_ask(self, server: ConsumerGroupUnderTest) -> None:
        Client(server, "a", "t").beat()
        assert server.group.check_fetch(None, -1) is ErrorCode.NONE

    def test_the_group_knows_what_it_reads(self, server: ConsumerGroupUnderTest) -> None:
        Client(server, "a", "t").beat()
        Client(server, "b", topic_regex="x.*").beat()
        assert server.group.subscribes("t")
        assert server.group.subscribes("xyz")
        assert not server.group.subscribes("u")


class TestThroughACrash:
    def test_a_revocation_under_way_is_still_waited_for(self, server: ConsumerGroupUnderTest) -> None:
        a, b = Client(server, "a", "t"), Client(server, "b", "t")
        a.beat()
        a.slow = True
        b.beat()
        a.beat()
        server.crash()
        assert server.group.members["a"].state is MemberState.UNREVOKED
        b.beat()
        assert b.owned == frozenset()
        deadline = server.group.members["a"].revoke_deadline
        assert deadline == server.now + REBALANCE_MS

    def test_nothing_is_stored_when_nothing_changes(self, server: ConsumerGroupUnderTest) -> None:
        a = Client(server, "a", "t")
        settle(a)
        server.group.heartbeat(server.now, Heartbeat(a.member_id, a.epoch), server.topics)
        assert server.group.take_changes() is None

    def test_changes_that_could_not_be_stored_come_again(self, server: ConsumerGroupUnderTest) -> None:
        Client(server, "a", "t").beat()
        server.group.tick(SESSION_MS)
        changes = server.group.take_changes()
        assert changes is not None
        server.group.put_back(changes)
        assert server.group.take_changes() == changes
