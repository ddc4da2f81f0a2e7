"""An owner's implicit transactions, in lanes: when they open and end, and when tickets are settled (OWN-9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from fencepost.client.cluster.thread_calls import ThreadCalls
from fencepost.client.produce.lanes import MAX_SECONDS_OPEN, NO_NODE, Acknowledged, WriteId, WriteLane, WriteLanes
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, Persisted, SendFailed, ServerError, TimedOut, Unreachable
from fencepost.types import Epoch, Offset, Pid, TopicPartition

pytestmark = pytest.mark.unit

WHO = Identity(Pid(1), Epoch(0))
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FENCED = ServerError(ErrorCode.PRODUCER_FENCED)


class FakeBatch:
    topic_name = "t"
    partition = 0

    def __init__(self, deadline: float = 120.0) -> None:
        self.deadline = deadline


class FakeSteps:
    """A coordinator that answers as the test says."""

    name = "w"

    def __init__(self) -> None:
        self.doubts = 0
        self.ends: list[bool] = []
        self.answer: Callable[[], None] = lambda: None
        self.epoch = WHO.epoch
        self.answer_to_init: Callable[[], None] = lambda: None

    def end(self, who: Identity, *, commit: bool) -> None:
        assert who == Identity(WHO.pid, self.epoch)
        self.ends.append(commit)
        self.answer()

    def init(self, timeout_ms: int, who: Identity | None = None) -> Identity:
        assert who == Identity(WHO.pid, self.epoch)
        self.answer_to_init()
        self.epoch = Epoch(self.epoch + 1)
        return Identity(WHO.pid, self.epoch)


class FakeThreadCalls:
    """ThreadCalls that run when the test says so."""

    def __init__(self) -> None:
        self.out: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def run_in_thread(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self.out.append((work, then))

    def run(self) -> None:
        work, then = self.out.pop()
        try:
            outcome = work()
        except FencepostError as error:
            outcome = error
        then(outcome)


class Seen:
    """A record of the outcomes that a lane reports."""

    def __init__(self) -> None:
        self.delivered: list[int] = []
        self.failed: list[tuple[int, Persisted]] = []
        self.fenced: ErrorCode | None = None
        self.again: list[int] = []

    def settle(self, acknowledged: Acknowledged) -> None:
        self.delivered.append(acknowledged.base_offset)

    def fail_uncommitted(self, batches: list[ProducerBatch], cause: FencepostError, persisted: Persisted) -> None:
        self.failed.append((len(batches), persisted))

    def fence(self, code: ErrorCode) -> None:
        self.fenced = code

    def send_again(self, queues: Iterable[PartitionQueue], acknowledged: list[ProducerBatch]) -> None:
        self.again.append(len(acknowledged))


class Case:
    def __init__(self) -> None:
        self.steps, self.thread_calls, self.seen = FakeSteps(), FakeThreadCalls(), Seen()
        self.in_the_log: Callable[[TopicPartition, Offset], bool] = lambda place, offset: pytest.fail("asked the log")
        self.implicit = WriteLane(
            WriteId(cast("Any", self.steps), "w", WHO, NO_NODE),
            60_000,
            cast("ThreadCalls", self.thread_calls),
            self.seen,
            self._is_committed,
        )

    def _is_committed(self, place: TopicPartition, offset: Offset) -> bool:
        return self.in_the_log(place, offset)

    def admits(self, place: TopicPartition = P0, *, is_new: bool = True, now: float = 0.0) -> bool:
        return self.implicit.admits(place, is_new=is_new, now=now)

    def add(self) -> None:
        """Have the coordinator add the wanted partitions."""
        assert self.implicit.open is not None
        self.implicit.open.added(self.implicit.open.to_add())

    def acknowledged(self, *offsets: int, deadline: float = 120.0) -> None:
        assert not self.admits()
        self.add()
        assert self.admits()
        for offset in offsets:
            self.implicit.hold(Acknowledged(cast("ProducerBatch", FakeBatch(deadline)), offset, -1))

    def overdue(self, now: float) -> list[Persisted]:
        return [persisted for _, persisted in self.implicit.take_overdue(now)]

    def go_on(self, *, all_answered: bool = True, now: float = 0.0) -> None:
        self.implicit.go_on(now, all_answered=all_answered)


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_batch_waits_until_its_partition_is_part_of_the_transaction(case: Case) -> None:
    assert not case.admits()
    case.go_on()
    assert not case.thread_calls.out, "there is nothing to end yet"
    case.add()
    assert case.admits()
    assert not case.admits(P1)


def test_what_is_acknowledged_is_delivered_by_the_commit(case: Case) -> None:
    case.acknowledged(5, 7)
    case.go_on()
    assert not case.seen.delivered
    assert not case.admits(), "nothing is sent while it ends"
    case.thread_calls.run()
    assert case.steps.ends == [True]
    assert case.seen.delivered == [5, 7]
    assert case.implicit.is_ready
    assert not case.admits(), "the next one begins with the next partition"
    assert case.implicit.open is not None


def test_it_does_not_end_while_a_batch_is_under_way_or_a_partition_is_being_added(case: Case) -> None:
    case.acknowledged(5)
    case.go_on(all_answered=False)
    assert not case.admits(P1)
    case.go_on()
    assert not case.thread_calls.out
    case.add()
    case.go_on()
    assert case.thread_calls.out


def test_a_steady_stream_is_not_one_endless_transaction(case: Case) -> None:
    case.acknowledged(5)
    assert case.admits(now=MAX_SECONDS_OPEN - 0.001)
    assert not case.admits(now=MAX_SECONDS_OPEN)
    assert case.admits(is_new=False, now=MAX_SECONDS_OPEN), "what is sent again belongs to it"


def test_a_coordinator_slow_to_begin_does_not_close_it_before_the_first_batch(case: Case) -> None:
    assert not case.admits()
    case.add()
    assert case.admits(now=10 * MAX_SECONDS_OPEN)


def test_an_owner_that_is_told_of_its_fence_knows_that_nothing_was_committed(case: Case) -> None:
    case.steps.answer = _raise(FENCED)
    case.acknowledged(5)
    case.go_on()
    case.thread_calls.run()
    assert case.seen.failed == [(1, "no")]
    assert case.seen.fenced is FENCED.code


@pytest.mark.parametrize("error", [FENCED, TimedOut("no answer"), Unreachable("gone")])
def test_a_commit_that_may_have_been_answered_before_is_looked_up(case: Case, error: FencepostError) -> None:
    """Records that are certainly not committed are sent again, unless the owner is fenced."""
    for in_the_log in (True, False):
        case = Case()
        case.in_the_log = lambda place, offset, there=in_the_log: there and (place, offset) == (P0, 7)  # type: ignore[misc]
        case.steps.answer = lambda case=case: _lose(case.steps, error)  # type: ignore[misc]
        case.acknowledged(-1, 7)
        case.go_on()
        case.thread_calls.run()
        is_failed, is_again = (not in_the_log and error is FENCED), (not in_the_log and error is not FENCED)
        assert case.seen.failed == ([(2, "no")] if is_failed else [])
        assert case.seen.again == ([2] if is_again else [])
        assert case.seen.delivered == ([-1, 7] if in_the_log else [])
        assert case.seen.fenced is (FENCED.code if error is FENCED else None)
        assert not case.implicit.is_ready, "a late commit must not end the next one"


@pytest.mark.parametrize("error", [FENCED, TimedOut("no answer")])
def test_what_cannot_be_looked_up_stays_unknown(case: Case, error: FencepostError) -> None:
    def unreachable(place: TopicPartition, offset: Offset) -> bool:
        raise Unreachable("gone")

    case.in_the_log = unreachable
    case.steps.answer = lambda: _lose(case.steps, error)
    case.acknowledged(5)
    case.go_on()
    case.thread_calls.run()
    assert case.seen.failed == [(1, "unknown")]


def test_what_a_commit_came_to_that_failed_by_a_bug_is_unknown(case: Case) -> None:
    case.acknowledged(5)
    case.go_on()
    _, then = case.thread_calls.out.pop()
    then(FencepostError("RuntimeError: on purpose"))
    assert case.seen.failed == [(1, "unknown")]


def test_a_commit_that_was_asked_for_twice_asks_for_the_next_epoch(case: Case) -> None:
    """The first request may be delayed, and would end the next transaction of the same epoch."""

    def second_try() -> None:
        case.steps.doubts += 1

    case.steps.answer = second_try
    case.acknowledged(5)
    case.go_on()
    case.thread_calls.run()
    assert case.seen.delivered == [5]
    assert not case.admits()
    case.go_on()
    case.thread_calls.run()
    assert case.implicit.identity == Identity(WHO.pid, Epoch(1))
    assert case.steps.ends == [True], "nothing is open that would have to be aborted"
    assert case.implicit.is_ready


def test_a_record_that_fails_for_good_aborts_and_the_rest_is_resent_next_epoch(case: Case) -> None:
    """PROD-6: the lane continues, and so does the owner."""
    case.acknowledged(5)
    case.implicit.fail(SendFailed("too large", persisted="no"))
    assert not case.admits(is_new=False)
    case.go_on()
    assert case.seen.again == [1], "what was acknowledged in it is not committed"
    assert not case.admits(), "nothing goes before the next epoch is there"
    assert case.implicit.successor(WHO) is None
    case.thread_calls.run()
    assert case.steps.ends == [False]
    assert case.implicit.successor(WHO) == case.implicit.identity == Identity(WHO.pid, Epoch(1))
    assert case.seen.fenced is None
    assert not case.admits(), "a new one begins"
    case.add()
    assert case.admits()


def test_the_next_epoch_is_requested_again_after_no_answer_without_a_second_abort(case: Case) -> None:
    case.acknowledged(5)
    case.implicit.fail(SendFailed("too large", persisted="no"))
    case.steps.answer_to_init = _raise(Unreachable("gone"))
    case.go_on()
    case.thread_calls.run()
    assert case.implicit.successor(WHO) is None
    case.go_on()
    assert not case.thread_calls.out, "not at once"
    case.steps.answer_to_init = lambda: None
    case.go_on(now=1.0)
    case.thread_calls.run()
    assert case.implicit.successor(WHO) == Identity(WHO.pid, Epoch(1))
    assert case.steps.ends == [False]


def test_a_transaction_about_to_time_out_is_aborted_before_the_coordinator_fences(case: Case) -> None:
    """One partition that does not answer must not end the owner."""
    case.acknowledged(5)
    case.go_on(all_answered=False, now=29.0)
    assert not case.thread_calls.out
    case.go_on(all_answered=False, now=30.0)
    case.thread_calls.run()
    assert case.seen.again == [1]
    assert case.seen.fenced is None


def test_a_transaction_that_is_over_on_the_server_may_mean_the_fence(case: Case) -> None:
    case.acknowledged(5)
    case.implicit.fail(ServerError(ErrorCode.INVALID_TXN_STATE))
    case.steps.answer = _raise(FENCED)
    case.go_on()
    case.thread_calls.run()
    assert case.seen.fenced is FENCED.code


def test_what_was_given_up_is_not_settled_again_by_a_late_answer(case: Case) -> None:
    case.acknowledged(5)
    case.go_on()
    assert len(case.implicit.drop()) == 0, "its commit is under way"
    assert len(case.implicit.drop(for_good=True)) == 1
    case.thread_calls.run()
    assert not case.seen.delivered


@pytest.mark.parametrize("in_the_log", [True, False])
def test_a_record_that_expires_during_its_commit_is_unknown_whatever_the_outcome(case: Case, in_the_log: bool) -> None:
    """PROD-8: the commit settles the others, or they are sent again; an expired batch is settled once."""
    case.acknowledged(5, deadline=10.0)
    case.implicit.hold(Acknowledged(cast("ProducerBatch", FakeBatch(20.0)), 6, -1))
    assert case.implicit.expires_at == 10.0
    case.go_on()
    assert case.overdue(9.9) == []
    assert case.overdue(10.0) == ["unknown"]
    assert case.implicit.expires_at == 20.0
    case.in_the_log = lambda place, offset: in_the_log
    case.steps.answer = lambda: _lose(case.steps, TimedOut("no answer"))
    case.thread_calls.run()
    assert case.seen.delivered == ([6] if in_the_log else [])
    assert case.seen.again == ([] if in_the_log else [1])
    assert case.overdue(10.0) == []


def test_a_commit_of_which_all_has_expired_sends_nothing_again(case: Case) -> None:
    """Its partitions may be in a transaction of the caller's by then."""
    case.acknowledged(5, 6, deadline=10.0)
    case.go_on()
    assert case.overdue(10.0) == ["unknown", "unknown"]
    asked: list[Offset] = []

    def is_there(place: TopicPartition, offset: Offset) -> bool:
        asked.append(offset)
        return False

    case.in_the_log = is_there
    case.steps.answer = lambda: _lose(case.steps, TimedOut("no answer"))
    case.thread_calls.run()
    assert asked == [5], "the log is asked all the same: it says how the lane goes on"
    assert (case.seen.delivered, case.seen.again, case.seen.failed) == ([], [], [])
    case.go_on()
    case.thread_calls.run()
    assert case.implicit.is_ready, "and the lane goes on"


def test_a_lane_is_in_doubt_until_its_commit_is_answered_or_its_transaction_aborted(case: Case) -> None:
    assert not _is_in_doubt(case)
    case.acknowledged(5)
    case.go_on()
    assert _is_in_doubt(case)
    case.thread_calls.run()
    assert not _is_in_doubt(case)
    case.acknowledged(6)
    case.implicit.fail(SendFailed("too large", persisted="no"))
    case.go_on()
    assert _is_in_doubt(case)
    case.thread_calls.run()
    assert not _is_in_doubt(case)


def test_what_expires_before_its_commit_is_asked_for_is_certainly_not_there(case: Case) -> None:
    case.acknowledged(5, deadline=10.0)
    case.go_on(all_answered=False)
    assert case.overdue(10.0) == ["no"]
    case.implicit.fail(SendFailed("its time is over", persisted="no"))
    case.go_on(now=10.0)
    case.thread_calls.run()
    assert case.steps.ends == [False], "it is aborted"
    assert case.implicit.is_ready


def test_a_partition_gets_a_lane_at_its_leader_with_as_few_others_as_possible() -> None:
    def lane(node: int) -> WriteLane:
        write_id = WriteId(cast("Any", FakeSteps()), f"w{node}", WHO, node)
        return WriteLane(write_id, 1, cast("Any", None), Seen(), lambda *_: True)

    lanes = WriteLanes([lane(1), lane(2), lane(1)])
    queues = [cast("PartitionQueue", object()) for _ in range(5)]
    first = lanes.of(queues[0])
    assert not first.queues, "who leads it is not known yet"
    chosen = [lanes.of(queue, leader) for queue, leader in zip(queues, (1, 1, 2, 2, 9), strict=True)]
    assert [each.node for each in chosen[:4]] == [1, 1, 2, 2]
    assert chosen[0] is not chosen[1]
    assert chosen[2] is chosen[3], "there is no other at that broker"
    assert chosen[4].node == 1, "nobody is at broker 9: the one with the fewest"
    assert [lanes.of(queue) for queue in queues] == chosen, "a partition keeps its lane"


def _is_in_doubt(case: Case) -> bool:
    return WriteLanes([case.implicit]).are_in_doubt


def _raise(error: FencepostError) -> Callable[[], None]:
    def answer() -> None:
        raise error

    return answer


def _lose(steps: FakeSteps, error: FencepostError) -> None:
    steps.doubts += 1
    raise error
