"""The decisions of a membership one by one; `tests/model/test_membership_model.py` has their combinations."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.groups.classic_member import ClassicJoin
from fencepost.core.groups.classic_messages import JoinResult
from fencepost.core.groups.consumer_member import ConsumerAnswer, ConsumerBeat
from fencepost.core.groups.holding import Assigned, MemberSettings, ToRevoke, WereLost
from fencepost.core.groups.membership import Membership
from fencepost.errors import ErrorCode, ServerError, TooSlow
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({ZERO, ONE})


def member(**options: Any) -> Membership:
    settings = MemberSettings("g", frozenset({"t"}), options.pop("name", None), processing_timeout=20.0, session=10.0)
    return Membership(settings, "id", options.pop("protocol", "consumer"), patience=30.0, **options)


def told(membership: Membership, now: float, answer: Any) -> Any:
    ask = membership.next(now)
    assert ask is not None
    membership.answered(ask, answer, now)
    return ask


def joined(**options: Any) -> Membership:
    membership = member(**options)
    told(membership, 0.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, BOTH))
    assert membership.holding.take_event() == Assigned(BOTH)
    return membership


def test_a_member_joins_reports_what_it_holds_and_then_beats() -> None:
    membership = member()
    first = told(membership, 0.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, BOTH))
    assert (first.epoch, first.owned, first.topics) == (0, frozenset(), {"t"})
    second = told(membership, 0.1, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, None))
    assert (second.epoch, second.owned, second.topics) == (1, BOTH, None)
    assert membership.next(0.2) is None
    third = told(membership, membership.next_at(), ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, None))
    assert (third.owned, third.topics, third.rebalance_timeout) == (None, None, None)


def test_a_request_without_an_answer_is_repeated_with_everything_in_it() -> None:
    membership = joined()
    ask = membership.next(0.1)
    assert ask is not None
    membership.unanswered(ask, 2.0)
    assert membership.next(2.0) is None, "after a pause"
    again = membership.next(3.0)
    assert isinstance(again, ConsumerBeat)
    assert (again.owned, again.topics, again.rebalance_timeout) == (BOTH, frozenset({"t"}), 20.0)


def test_nothing_is_handed_out_once_the_session_may_be_over() -> None:
    membership = joined()
    assert membership.holding.may_hand_out(ZERO, 9.9)
    assert not membership.holding.may_hand_out(ZERO, 10.0)
    told(membership, 9.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, None))
    assert membership.holding.may_hand_out(ZERO, 18.9)


def test_a_revoked_partition_is_reported_only_when_the_program_has_released_it() -> None:
    membership = joined()
    told(membership, 1.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, frozenset({ZERO})))
    event = membership.holding.take_event()
    assert isinstance(event, ToRevoke)
    assert event.partitions == {ONE}
    assert not membership.holding.may_hand_out(ONE, 1.1)
    assert membership.holding.may_commit(ONE)
    told(membership, 6.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, None))
    membership.holding.released(event)
    assert not membership.holding.may_commit(ONE)
    beat = membership.next(6.1)
    assert isinstance(beat, ConsumerBeat)
    assert beat.owned == frozenset({ZERO})


def test_a_slow_program_loses_everything_before_the_coordinator_hears_of_it() -> None:
    membership = joined()
    membership.leave_to_program(1.0)
    beat = told(membership, 20.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, None))
    assert beat.epoch == 1
    leave = membership.next(21.0)
    assert isinstance(leave, ConsumerBeat)
    assert leave.epoch == -1
    assert not membership.holding.owned
    event = membership.holding.take_event()
    assert isinstance(event, WereLost)
    assert isinstance(event.cause, TooSlow)
    assert event.cause.partitions == (ZERO, ONE)
    membership.answered(leave, ConsumerAnswer(ErrorCode.NONE), 21.1)
    assert membership.next(100.0) is None, "it joins when the program has heard of it"
    membership.forgive()
    again = membership.next(100.0)
    assert isinstance(again, ConsumerBeat)
    assert again.epoch == 0


def test_a_revocation_that_takes_too_long_counts_as_too_slow() -> None:
    membership = joined()
    told(membership, 1.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, frozenset({ZERO})))
    membership.holding.take_event()
    membership.judge(20.9)
    assert membership.too_slow is None
    membership.judge(21.0)
    assert membership.too_slow is not None


def test_a_deadline_runs_from_the_first_request_whose_answer_may_have_told_of_it() -> None:
    membership = joined()
    lost = membership.next(1.0)
    assert lost is not None
    membership.unanswered(lost, 4.0)
    told(membership, 6.0, ConsumerAnswer(ErrorCode.NONE, None, 1, 5.0, frozenset({ZERO})))
    assert membership.holding.revoke_by == 21.0


def test_what_came_back_after_a_loss_cannot_be_committed_before_the_program_knows() -> None:
    membership = joined()
    told(membership, 1.0, ConsumerAnswer(ErrorCode.FENCED_MEMBER_EPOCH))
    told(membership, 1.1, ConsumerAnswer(ErrorCode.NONE, None, 3, 5.0, BOTH))
    assert ZERO in membership.holding.owned
    assert not membership.holding.may_commit(ZERO)


def test_a_group_of_another_protocol_is_joined_in_its_own() -> None:
    membership = member()
    told(membership, 0.0, ConsumerAnswer(ErrorCode.GROUP_ID_NOT_FOUND))
    assert membership.protocol == "cooperative"
    cooperative = told(membership, 0.1, JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    assert isinstance(cooperative, ClassicJoin)
    assert [name for name, _ in cooperative.protocols] == ["cooperative-sticky"]
    eager = membership.next(0.2)
    assert isinstance(eager, ClassicJoin)
    assert [name for name, _ in eager.protocols] == ["range", "roundrobin"]


def test_a_protocol_that_the_user_chose_is_kept() -> None:
    membership = member(fixed=True)
    told(membership, 0.0, ConsumerAnswer(ErrorCode.GROUP_ID_NOT_FOUND, "classic"))
    assert isinstance(membership.error, ServerError)
    assert membership.next_at() == float("inf")


def test_a_static_name_whose_former_user_has_just_died_is_waited_for() -> None:
    membership = member(name="one")
    errors = []
    for now in (0.0, 10.0, 31.0):
        told(membership, now, ConsumerAnswer(ErrorCode.UNRELEASED_INSTANCE_ID))
        errors.append(membership.error)
    assert errors[:2] == [None, None]
    assert "member='one'" in str(errors[2])


def test_leaving_keeps_a_static_members_place_and_nobody_elses() -> None:
    for name, epoch in ((None, -1), ("one", -2)):
        membership = joined(name=name)
        last = membership.leaving(1.0)
        assert isinstance(last, ConsumerBeat)
        assert last.epoch == epoch
        assert not membership.holding.owned
    assert member().leaving(0.0) is None
