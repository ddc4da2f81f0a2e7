"""Classic consumer groups: who is in, who leads, who waits for whom, and what time does to them."""

from __future__ import annotations

import struct

import pytest

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import GroupState, topics_of_subscription
from fencepost.errors import ErrorCode
from tests.support.classic_group import REBALANCE_MS, SESSION_MS, GroupUnderTest

pytestmark = pytest.mark.unit


def subscription(*topics: str) -> bytes:
    packed = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        packed += struct.pack(">h", len(topic)) + topic.encode()
    return packed + struct.pack(">ii", -1, 0)


@pytest.fixture
def under_test() -> GroupUnderTest:
    return GroupUnderTest()


class TestJoining:
    def test_a_second_member_waits_until_the_first_has_come_back(self, under_test: GroupUnderTest) -> None:
        [first] = under_test.stable(1)
        second, parked = under_test.enter()
        assert under_test.is_parked(parked)
        assert under_test.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
        back = under_test.join(first)
        assert under_test.joined(parked).generation == under_test.joined(back).generation == 2
        assert under_test.joined(parked).members == ()
        assert {each.member_id for each in under_test.joined(back).members} == {first, second}

    def test_who_does_not_come_back_within_the_rebalance_timeout_is_out(self, under_test: GroupUnderTest) -> None:
        [first] = under_test.stable(1)
        second, parked = under_test.enter()
        for _ in range(REBALANCE_MS // 5_000):
            assert under_test.is_parked(parked)
            assert under_test.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
            under_test.advance(5_000)
        assert under_test.joined(parked).leader == second
        assert under_test.heartbeat(first) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_parked_member_does_not_lose_its_session(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        back = under_test.join(second, protocols=(("range", b"changed"),))
        for _ in range(4):
            under_test.heartbeat(first)
            under_test.advance(SESSION_MS - 1)
        assert under_test.is_parked(back)
        under_test.join(first)
        assert under_test.joined(back).error is ErrorCode.NONE

    def test_a_new_member_that_parked_and_vanished_is_dropped_in_the_end(self) -> None:
        under_test = GroupUnderTest(new_member_join_timeout_ms=20_000)
        [first] = under_test.stable(1)
        _, parked = under_test.enter()
        for _ in range(5):
            under_test.heartbeat(first)
            under_test.advance(5_000)
        assert under_test.joined(parked).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert under_test.is_parked(parked) is False

    def test_a_pending_id_holds_the_rebalance_up_for_a_session_at_most(self, under_test: GroupUnderTest) -> None:
        [first] = under_test.stable(1)
        assert under_test.joined(under_test.join()).error is ErrorCode.MEMBER_ID_REQUIRED
        back = under_test.join(first)
        assert under_test.is_parked(back)
        under_test.advance(SESSION_MS)
        assert under_test.joined(back).generation == 2

    def test_a_pending_id_that_lapses_does_not_disturb_a_stable_group(self, under_test: GroupUnderTest) -> None:
        [first] = under_test.stable(1)
        under_test.join()
        under_test.advance(SESSION_MS - 1)
        under_test.heartbeat(first)
        under_test.advance(1)
        assert under_test.state() is GroupState.STABLE
        assert not under_test.group.pending

    def test_a_pending_member_that_leaves_lets_the_others_go_on(self, under_test: GroupUnderTest) -> None:
        [first] = under_test.stable(1)
        pending = under_test.joined(under_test.join()).member_id
        back = under_test.join(first)
        assert under_test.leave(pending) == [ErrorCode.NONE]
        assert under_test.joined(back).error is ErrorCode.NONE

    def test_a_full_group_takes_nobody_in(self) -> None:
        under_test = GroupUnderTest(max_size=2)
        first, second = under_test.stable(2)
        assert under_test.joined(under_test.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
        handles = [under_test.join(first), under_test.join(second)]
        assert all(under_test.joined(handle).error is ErrorCode.NONE for handle in handles)

    def test_the_leader_of_a_stable_group_rejoins_to_assign_anew(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        parked = under_test.join(first)
        assert under_test.state() is GroupState.PREPARING_REBALANCE
        under_test.join(second)
        assert under_test.joined(parked).generation == 3

    def test_a_follower_with_changed_metadata_causes_a_rebalance(self, under_test: GroupUnderTest) -> None:
        _, second = under_test.stable(2)
        under_test.join(second, protocols=(("range", b"other topics"),))
        assert under_test.state() is GroupState.PREPARING_REBALANCE

    def test_a_lost_join_answer_is_given_again_while_the_group_completes(self, under_test: GroupUnderTest) -> None:
        member_id, handle = under_test.enter()
        again = under_test.join(member_id)
        assert under_test.joined(again) == under_test.joined(handle)

    def test_a_second_join_of_a_parked_member_settles_the_first(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        given_up = under_test.join(first)
        again = under_test.join(first)
        assert under_test.joined(given_up).error is ErrorCode.REBALANCE_IN_PROGRESS
        under_test.join(second)
        assert under_test.joined(again).error is ErrorCode.NONE

    def test_the_initial_delay_gathers_members_into_one_generation(self) -> None:
        under_test = GroupUnderTest(initial_rebalance_delay_ms=3_000)
        _, first = under_test.enter()
        under_test.advance(2_000)
        _, second = under_test.enter()
        under_test.advance(1_000)
        assert under_test.is_parked(first), "a member came within the delay, so it is prolonged once"
        under_test.advance(3_000)
        assert under_test.joined(first).generation == under_test.joined(second).generation == 1

    def test_the_initial_delay_ends_at_the_rebalance_timeout(self) -> None:
        under_test = GroupUnderTest(initial_rebalance_delay_ms=3_000)
        _, first = under_test.enter(rebalance_timeout_ms=7_000)
        for _ in range(7):
            assert under_test.is_parked(first)
            under_test.enter(rebalance_timeout_ms=7_000)
            under_test.advance(1_000)
        assert under_test.joined(first).error is ErrorCode.NONE


class TestProtocols:
    def test_the_only_member_may_change_its_protocol(self, under_test: GroupUnderTest) -> None:
        [member_id] = under_test.stable(1)
        handle = under_test.join(member_id, protocols=(("sticky", b"s"),))
        assert under_test.joined(handle).protocol == "sticky"


class TestSyncing:
    def test_followers_wait_for_the_leader(self, under_test: GroupUnderTest) -> None:
        first, _ = under_test.enter()
        second, _ = under_test.enter()
        under_test.join(first)
        waiting = under_test.sync(second)
        assert under_test.is_parked(waiting)
        leading = under_test.sync(first, {first: b"a", second: b"b", "stranger": b"c"})
        assert under_test.synced(waiting).assignment == b"b"
        assert under_test.synced(leading).assignment == b"a"
        assert under_test.state() is GroupState.STABLE

    def test_a_member_the_leader_forgot_gets_an_empty_assignment(self, under_test: GroupUnderTest) -> None:
        member_id, _ = under_test.enter()
        handle = under_test.sync(member_id)
        assert (under_test.synced(handle).error, under_test.synced(handle).assignment) == (ErrorCode.NONE, b"")

    def test_the_assignment_is_saved_before_it_is_told(self, under_test: GroupUnderTest) -> None:
        member_id, _ = under_test.enter()
        assert under_test.saves == 0
        under_test.sync(member_id, {member_id: b"a"})
        assert under_test.saves == 1
        assert under_test.group.record().members[0].assignment == b"a"

    def test_a_rebalance_sends_those_who_wait_for_the_assignment_back(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        under_test.join(first)
        under_test.join(second, protocols=(("range", b"x"),))
        waiting = under_test.sync(second)
        under_test.enter()
        assert under_test.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_sync_while_the_group_gathers_is_refused(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        under_test.join(first)
        assert under_test.synced(under_test.sync(second)).error is ErrorCode.REBALANCE_IN_PROGRESS

    def test_who_joins_but_never_syncs_is_out_after_the_rebalance_timeout(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        under_test.join(first)
        under_test.join(second, protocols=(("range", b"x"),))
        under_test.sync(first, {})
        for _ in range(REBALANCE_MS // 5_000):
            under_test.heartbeat(first)
            under_test.heartbeat(second)
            under_test.advance(5_000)
        assert set(under_test.group.members) == {first}
        assert under_test.state() is GroupState.PREPARING_REBALANCE

    def test_a_leader_that_never_syncs_does_not_hold_the_group_for_ever(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        under_test.join(first)
        under_test.join(second, protocols=(("range", b"x"),))
        waiting = under_test.sync(second)
        under_test.advance(SESSION_MS)
        assert under_test.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
        under_test.join(second)
        assert under_test.group.leader == second


class TestHeartbeats:
    def test_a_silent_member_is_out_after_its_session(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        under_test.advance(SESSION_MS - 1)
        assert under_test.heartbeat(first) is ErrorCode.NONE
        under_test.advance(1)
        assert under_test.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
        assert under_test.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS

    def test_heartbeats_keep_a_member_in(self, under_test: GroupUnderTest) -> None:
        [member_id] = under_test.stable(1)
        for _ in range(10):
            under_test.advance(SESSION_MS - 1)
            assert under_test.heartbeat(member_id) is ErrorCode.NONE

    def test_a_commit_counts_as_a_heartbeat(self, under_test: GroupUnderTest) -> None:
        [member_id] = under_test.stable(1)
        under_test.advance(SESSION_MS - 1)
        assert under_test.group.check_commit(under_test.now, member_id, 1, None) is ErrorCode.NONE
        under_test.advance(SESSION_MS - 1)
        assert member_id in under_test.group.members

    def test_heartbeats_are_fine_before_the_assignment_is_there(self, under_test: GroupUnderTest) -> None:
        member_id, _ = under_test.enter()
        assert under_test.heartbeat(member_id) is ErrorCode.NONE


class TestLeaving:
    def test_the_last_to_leave_leaves_an_empty_group_behind(self, under_test: GroupUnderTest) -> None:
        [member_id] = under_test.stable(1)
        saves = under_test.saves
        assert under_test.leave(member_id) == [ErrorCode.NONE]
        assert under_test.state() is GroupState.EMPTY
        assert under_test.group.generation == 2
        assert under_test.saves == saves + 1
        assert under_test.group.record().members == ()
        assert under_test.group.next_deadline() is None

    def test_a_new_leader_is_chosen_when_the_leader_leaves(self, under_test: GroupUnderTest) -> None:
        first, second, third = under_test.stable(3)
        under_test.leave(first)
        handles = [under_test.join(second), under_test.join(third)]
        assert {under_test.joined(handle).leader for handle in handles} == {second}

    def test_several_leave_in_one_rebalance(self, under_test: GroupUnderTest) -> None:
        first, second, third = under_test.stable(3)
        assert under_test.leave(second, "nobody", third) == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.NONE,
        ]
        assert under_test.joined(under_test.join(first)).generation == 4

    def test_who_leaves_with_a_parked_request_gets_an_answer(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        parked = under_test.join(first)
        under_test.leave(first)
        assert under_test.joined(parked).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert under_test.joined(under_test.join(second)).leader == second

    def test_who_is_removed_while_it_waits_for_its_assignment_gets_an_answer(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        under_test.join(first)
        under_test.join(second, protocols=(("range", b"x"),))
        waiting = under_test.sync(second)
        under_test.leave(second)
        assert under_test.synced(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_leaving_completes_a_rebalance_that_waited_for_this_member(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        parked = under_test.join(first)
        under_test.leave(second)
        assert under_test.joined(parked).generation == 3

    def test_closing_answers_everyone_who_is_parked(self, under_test: GroupUnderTest) -> None:
        first, second = under_test.stable(2)
        parked = under_test.join(first)
        under_test._take(under_test.group.close())
        assert under_test.joined(parked).error is ErrorCode.NOT_COORDINATOR
        assert under_test.heartbeat(second) is ErrorCode.COORDINATOR_NOT_AVAILABLE


class TestStaticMembers:
    """KIP-345."""

    def static(self, under_test: GroupUnderTest) -> tuple[str, str]:
        """A stable group of a static leader 'one' and a static follower 'two': their member ids."""
        first = under_test.joined(under_test.join(instance_id="one")).member_id
        under_test.sync(first, {}, instance_id="one")
        parked = under_test.join(instance_id="two")
        under_test.join(first, instance_id="one")
        second = under_test.joined(parked).member_id
        under_test.sync(second, instance_id="two")
        under_test.sync(first, {first: b"a", second: b"b"}, instance_id="one")
        return first, second

    def test_a_restarted_follower_takes_its_place_without_a_rebalance(self, under_test: GroupUnderTest) -> None:
        first, second = self.static(under_test)
        saves = under_test.saves
        result = under_test.joined(under_test.join(instance_id="two"))
        assert (result.error, result.generation, result.leader) == (ErrorCode.NONE, 2, first)
        assert result.member_id != second
        assert under_test.state() is GroupState.STABLE
        assert under_test.saves == saves + 1
        assert under_test.synced(under_test.sync(result.member_id, instance_id="two")).assignment == b"b"

    def test_a_restart_that_changes_the_chosen_protocol_causes_a_rebalance(self, under_test: GroupUnderTest) -> None:
        two = (("range", b"r"), ("sticky", b"s"))
        first = under_test.joined(under_test.join(instance_id="one", protocols=two)).member_id
        under_test.sync(first, {}, instance_id="one")
        parked = under_test.join(instance_id="one", protocols=two[::-1])
        assert under_test.joined(parked).protocol == "sticky"
        assert under_test.joined(parked).generation == 2

    def test_a_restart_in_mid_rebalance_fences_the_parked_request(self, under_test: GroupUnderTest) -> None:
        _, second = self.static(under_test)
        parked = under_test.join(second, instance_id="two", protocols=(("range", b"x"),))
        under_test.join(instance_id="two")
        assert under_test.joined(parked).error is ErrorCode.FENCED_INSTANCE_ID

    def test_a_restart_while_the_leader_assigns_causes_a_new_rebalance(self, under_test: GroupUnderTest) -> None:
        first, second = self.static(under_test)
        under_test.join(first, instance_id="one")
        under_test.join(second, instance_id="two", protocols=(("range", b"x"),))
        assert under_test.state() is GroupState.COMPLETING_REBALANCE
        parked = under_test.join(instance_id="two")
        assert under_test.state() is GroupState.PREPARING_REBALANCE
        assert under_test.is_parked(parked)

    def test_a_static_member_that_misses_a_rebalance_stays_until_its_session_ends(
        self, under_test: GroupUnderTest
    ) -> None:
        first = under_test.joined(under_test.join(instance_id="one", session_timeout_ms=100_000)).member_id
        under_test.sync(first, {}, instance_id="one")
        second, parked = under_test.enter()
        under_test.advance(REBALANCE_MS)
        assert under_test.joined(parked).leader == second
        assert set(under_test.group.members) == {first, second}

    def test_a_rebalance_waits_on_if_none_of_the_static_members_is_back(self, under_test: GroupUnderTest) -> None:
        first = under_test.joined(under_test.join(instance_id="one", session_timeout_ms=100_000)).member_id
        under_test.sync(first, {}, instance_id="one")
        second, parked = under_test.enter()
        under_test.leave(second)
        assert under_test.joined(parked).error is ErrorCode.UNKNOWN_MEMBER_ID
        under_test.advance(REBALANCE_MS)
        assert under_test.state() is GroupState.PREPARING_REBALANCE
        under_test.advance(100_000)
        assert under_test.state() is GroupState.EMPTY


class TestCommitting:
    def test_a_member_may_commit_before_it_rejoins_but_not_before_it_knows_its_part(
        self, under_test: GroupUnderTest
    ) -> None:
        first, second = under_test.stable(2)
        under_test.join(second, protocols=(("range", b"x"),))
        assert under_test.group.check_commit(0, first, 2, None) is ErrorCode.NONE
        under_test.join(first)
        assert under_test.group.check_commit(0, first, 3, None) is ErrorCode.REBALANCE_IN_PROGRESS
        assert under_test.group.check_commit(0, first, 3, None, transactional=True) is ErrorCode.NONE


class TestThroughACrash:
    def restored(self, under_test: GroupUnderTest) -> Group:
        return Group.restore("group", under_test.group.settings, lambda: "new", under_test.group.record(), 1_000)

    def test_a_static_member_finds_its_place_again(self, under_test: GroupUnderTest) -> None:
        first = under_test.joined(under_test.join(instance_id="one")).member_id
        under_test.sync(first, {first: b"a"}, instance_id="one")
        assert self.restored(under_test).statics == {"one": first}

    def test_an_empty_group_keeps_its_generation(self, under_test: GroupUnderTest) -> None:
        [member_id] = under_test.stable(1)
        under_test.leave(member_id)
        group = self.restored(under_test)
        assert (group.state, group.generation) == (GroupState.EMPTY, 2)


class TestSubscriptions:
    def test_the_topics_of_all_members_are_known(self, under_test: GroupUnderTest) -> None:
        first, _ = under_test.enter(protocols=(("range", subscription("a", "b")),))
        under_test.sync(first)
        assert under_test.group.subscribed_topics() == frozenset({"a", "b"})

    def test_other_metadata_is_nobodys_subscription(self, under_test: GroupUnderTest) -> None:
        under_test.stable(1)
        assert under_test.group.subscribed_topics() is None

    @pytest.mark.parametrize(
        "metadata",
        [
            b"",
            b"\0\1",
            subscription("topic")[:-9],
            struct.pack(">hi", -1, 0),
            struct.pack(">hi", 1, -1),
            struct.pack(">hih", 1, 1, -5),
            struct.pack(">hih", 1, 1, 1) + b"\xff",
        ],
    )
    def test_broken_metadata_is_no_subscription(self, metadata: bytes) -> None:
        assert topics_of_subscription(metadata) is None
