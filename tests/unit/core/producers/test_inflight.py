"""Order, retry and doubt of one partition's batches: stepped by hand, then by chance against the server's own rule."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.core.producers import sequence
from fencepost.core.producers.dedup import Accept, Duplicate, ProducerTable, SequencedBatch, StaleEpoch
from fencepost.core.producers.inflight import (
    NO_STAMP,
    PROOF_LASTS,
    TRANSACTION_OVER,
    Flight,
    SendVerdict,
    Sent,
    Stamp,
    Step,
    WrittenAs,
)
from fencepost.core.producers.pid import FENCING, Identity
from fencepost.core.producers.sequence import MAX_SEQUENCE
from fencepost.errors import ErrorCode
from fencepost.types import Epoch, Offset, Pid, Sequence

pytestmark = pytest.mark.unit

ME = Identity(Pid(7), Epoch(0))
NEXT = Identity(Pid(7), Epoch(1))
BACKOFF = 0.1


def flight(*, limit: int = 5) -> Flight[str]:
    lane: Flight[str] = Flight(limit=limit)
    lane.begin(ME)
    return lane


def proven(*, limit: int = 5) -> Flight[str]:
    """After one acknowledged record: sequence 0 at offset 0."""
    lane = flight(limit=limit)
    lane.acknowledged(lane.send("M0", 1), Offset(0), 0.0)
    return lane


def batches(lane: Flight[str]) -> list[str]:
    return [sent.batch for sent in lane]


def rests(lane: Flight[str]) -> bool:
    return lane.is_at_rest


def test_a_flight_rests_when_all_is_settled_and_the_numbering_has_no_hole() -> None:
    lane = proven()
    assert rests(lane)
    first, second = lane.send("M1", 1), lane.send("M2", 1)
    assert not rests(lane)
    lane.lost(first, 0.0, BACKOFF)
    assert not rests(lane)
    lane.lost(second, 0.0, BACKOFF)
    assert not rests(lane)
    lane.resend()
    assert not rests(lane)
    lane.acknowledged(first, Offset(1), 0.0)
    assert lane.resend() is second
    assert not rests(lane)
    lane.give_up(second)
    assert not rests(lane), "the hole is still to be closed"
    lane.renumber(NEXT)
    assert rests(lane)


def test_the_first_batch_goes_alone_and_an_acknowledgement_opens_the_pipe() -> None:
    """IDEM-5: with no state for a pid the server takes any sequence."""
    lane = flight(limit=3)
    assert lane.next_step(0) is Step.SEND
    first = lane.send("M1", 2)
    assert lane.next_step(0) is Step.WAIT
    lane.acknowledged(first, Offset(100), 0.0)
    assert lane.last_acknowledged == 101
    for name in ("M2", "M3", "M4"):
        assert lane.next_step(0) is Step.SEND
        lane.send(name, 1)
    assert lane.next_step(0) is Step.WAIT
    assert [sent.stamp.sequence for sent in lane] == [2, 3, 4]


def test_m2_fails_and_m3_with_it_and_both_go_again_in_order() -> None:
    """IDEM-6, the source document's case."""
    lane = proven()
    m1, m2, m3 = lane.send("M1", 1), lane.send("M2", 1), lane.send("M3", 1)
    lane.acknowledged(m1, Offset(1), 0.0)
    assert lane.refused(m2, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.0, BACKOFF) is SendVerdict.RETRY
    assert lane.next_step(9) is Step.WAIT  # nothing new, nothing again, while M3 is under way
    assert lane.refused(m3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0, BACKOFF) is SendVerdict.RETRY
    assert lane.next_step(0.05) is Step.WAIT
    assert lane.next_step(0.1) is Step.RESEND
    assert lane.resend() is m2
    assert lane.next_step(0.1) is Step.WAIT  # one at a time
    lane.acknowledged(m2, Offset(2), 0.0)
    assert lane.next_step(0.1) is Step.RESEND
    assert lane.resend() is m3
    assert (m2.stamp, m3.stamp) == (Stamp(*ME, Sequence(2)), Stamp(*ME, Sequence(3)))
    lane.acknowledged(m3, Offset(3), 0.0)
    assert lane.next_step(0.1) is Step.SEND
    assert len(lane) == 0


def test_a_lost_answer_leaves_doubt_that_a_later_refusal_does_not_end() -> None:
    lane = proven()
    m1 = lane.send("M1", 1)
    assert m1.persisted == "unknown"
    lane.lost(m1, 0.0, BACKOFF)
    lane.resend()
    lane.refused(m1, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1.0, BACKOFF)
    assert m1.in_doubt
    assert m1.persisted == "unknown"
    assert lane.next_step(2.0) is Step.RESEND
    assert lane.resend().stamp == Stamp(*ME, Sequence(1))


@pytest.mark.parametrize("code", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_errors_answered_after_the_append_leave_doubt(code: ErrorCode) -> None:
    lane = proven()
    m1 = lane.send("M1", 1)
    assert lane.refused(m1, code, 0.0, BACKOFF) is SendVerdict.RETRY
    assert m1.in_doubt


def test_a_request_that_never_left_leaves_no_doubt() -> None:
    lane = proven()
    m1 = lane.send("M1", 1)
    lane.never_left(m1)
    assert m1.persisted == "no"
    assert lane.next_step(0.0) is Step.RESEND


def test_out_of_order_for_the_oldest_batch_renumbers_the_rest() -> None:
    """What other clients call fatal is a bump of this partition's epoch."""
    lane = proven()
    m1, m2 = lane.send("M1", 3), lane.send("M2", 2)
    lane.refused(m1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0, BACKOFF)
    lane.refused(m2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0, BACKOFF)
    assert lane.next_step(0.0) is Step.BUMP
    lane.renumber(NEXT)
    assert (m1.stamp, m2.stamp) == (Stamp(*NEXT, Sequence(0)), Stamp(*NEXT, Sequence(3)))
    assert lane.next_sequence == 5
    assert lane.next_step(0.0) is Step.RESEND


def test_nothing_is_renumbered_while_a_batch_is_in_doubt() -> None:
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    lane.lost(m1, 0.0, BACKOFF)
    lane.lost(m2, 0.0, BACKOFF)
    lane.resend()
    lane.refused(m1, ErrorCode.UNKNOWN_PRODUCER_ID, 1.0, BACKOFF)
    assert lane.next_step(1.0) is Step.LOOK_BACK
    assert lane.looked_back({m1.stamp: Offset(1)}, lane.in_doubt()) == [(m1, 1)]
    assert batches(lane) == ["M2"]
    assert not m2.in_doubt
    assert lane.next_step(1.0) is Step.BUMP
    lane.renumber(NEXT)
    assert m2.stamp == Stamp(*NEXT, Sequence(0))


def test_a_batch_in_doubt_is_searched_for_behind_what_was_acknowledged_before_it() -> None:
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    lane.lost(m1, 0.0, BACKOFF)
    lane.acknowledged(m2, Offset(2), 0.0)  # so M1 is in the log, and before M2
    lane.wants_look_back(m1)
    assert lane.last_acknowledged == 2
    assert lane.look_back_from == 0


def test_a_reading_of_the_log_says_nothing_of_what_came_into_doubt_after_it_began() -> None:
    """PROD-8. The oldest was given up meanwhile, and the next epoch goes on."""
    lane = proven()
    m1 = lane.send("M1", 1)
    lane.lost(m1, 0.0, BACKOFF)
    asked = lane.in_doubt()
    lane.give_up(m1)
    lane.renumber(NEXT)
    m2 = lane.send("M2", 1)
    lane.lost(m2, 0.0, BACKOFF)
    assert lane.looked_back({}, asked) == []
    assert m2.in_doubt


def test_what_may_still_arrive_gets_no_new_numbers() -> None:
    """IDEM-6: it may reach the log after it was read, and before the next epoch does. What follows goes on."""
    lane = proven()
    m1, m2, m3 = lane.send("M1", 1), lane.send("M2", 1), lane.send("M3", 1)
    lane.lost(m1, 0.0, BACKOFF, overdue=True)
    lane.lost(m2, 0.0, BACKOFF, overdue=True)
    lane.never_left(m3)
    lane.wants_look_back(m1)
    assert lane.next_step(1.0) is Step.LOOK_BACK
    assert lane.looked_back({}, lane.in_doubt()) == []
    assert lane.give_up(m1) == "unknown"
    assert lane.next_step(1.0) is Step.BUMP
    assert lane.take_late() == [m2]
    assert m2.persisted == "unknown"
    lane.renumber(NEXT)
    assert batches(lane) == ["M3"]
    assert m3.stamp == Stamp(*NEXT, Sequence(0))


def test_a_log_that_cannot_be_read_is_read_again_later_where_numbers_depend_on_it() -> None:
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    lane.lost(m1, 0.0, BACKOFF)
    lane.lost(m2, 0.0, BACKOFF)
    assert lane.give_up(m1) == "unknown"
    assert lane.next_step(0.1) is Step.LOOK_BACK
    lane.look_back_failed(lane.in_doubt(), 0.1, BACKOFF)
    assert lane.next_step(0.15) is Step.WAIT
    assert lane.next_step(0.2) is Step.LOOK_BACK
    assert lane.give_up(m2) == "unknown"


def test_a_batch_in_doubt_is_looked_for_once_per_attempt_and_sent_again_as_it_is() -> None:
    """PROD-8: near its end, and without new numbers. A log that cannot be read does not keep it from being sent."""
    lane = proven()
    m1 = lane.send("M1", 1)
    lane.wants_look_back(m1)
    assert lane.next_step(0.0) is Step.SEND  # it is in flight, and no doubt about it yet
    lane.lost(m1, 0.0, BACKOFF)
    lane.wants_look_back(m1)
    assert lane.next_step(0.0) is Step.LOOK_BACK
    lane.look_back_failed(lane.in_doubt(), 0.1, BACKOFF)
    lane.wants_look_back(m1)
    assert lane.next_step(0.15) is Step.WAIT
    assert lane.next_step(0.2) is Step.RESEND
    assert lane.resend() is m1
    lane.lost(m1, 0.3, BACKOFF)
    lane.wants_look_back(m1)
    assert lane.next_step(0.3) is Step.LOOK_BACK
    assert lane.looked_back({}, lane.in_doubt()) == []
    assert m1.persisted == "no"
    assert lane.next_step(0.5) is Step.RESEND
    assert lane.resend().stamp == Stamp(*ME, Sequence(1))


def test_an_expired_batch_is_given_up_in_flight_and_the_next_epoch_goes_on() -> None:
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    assert lane.give_up(m1) == "unknown"
    assert lane.in_flight == 1
    assert lane.next_step(0.0) is Step.WAIT
    lane.acknowledged(m2, Offset(2), 0.0)
    assert lane.next_step(0.0) is Step.BUMP


def test_a_batch_that_is_given_up_leaves_a_hole_and_the_next_epoch_closes_it() -> None:
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    assert lane.refused(m1, ErrorCode.INVALID_RECORD, 0.0, BACKOFF) is SendVerdict.GIVE_UP
    assert lane.give_up(m1) == "no"
    assert lane.next_step(0.0) is Step.WAIT
    lane.refused(m2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0, BACKOFF)
    assert lane.next_step(0.0) is Step.BUMP
    lane.renumber(NEXT)
    assert lane.resend() is m2
    assert m2.stamp == Stamp(*NEXT, Sequence(0))
    assert lane.next_step(0.0) is Step.WAIT  # the first of an epoch goes alone
    lane.acknowledged(m2, Offset(1), 0.0)
    assert lane.send("M3", 1).stamp == Stamp(*NEXT, Sequence(1))


def test_the_parts_of_a_batch_that_was_too_large_share_its_sequences() -> None:
    lane = proven()
    big, after = lane.send("big", 5), lane.send("after", 1)
    assert lane.refused(big, ErrorCode.MESSAGE_TOO_LARGE, 0.0, BACKOFF) is SendVerdict.GIVE_UP
    lane.split(big, [("left", 2), ("right", 3)])
    lane.refused(after, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.0, BACKOFF)
    assert [(sent.batch, sent.stamp.sequence) for sent in lane] == [("left", 1), ("right", 3), ("after", 6)]
    assert lane.next_step(0.0) is Step.RESEND
    assert lane.resend().batch == "left"


def test_a_duplicate_too_old_to_be_remembered_is_persisted() -> None:
    lane = proven()
    m1 = lane.send("M1", 1)
    assert lane.refused(m1, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0.0, BACKOFF) is SendVerdict.PERSISTED
    lane.acknowledged(m1, None, 0.0)
    assert lane.last_acknowledged == 0


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_fenced_writer_stops_and_says_what_is_known_of_each_batch(code: ErrorCode) -> None:
    """IDEM-5."""
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    assert lane.refused(m1, code, 0.0, BACKOFF) is SendVerdict.FENCED
    assert [(sent.batch, sent.persisted) for sent in lane.give_up_all()] == [("M1", "no"), ("M2", "unknown")]
    assert m2.stamp.sequence == 2


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_under_a_name_a_stale_epoch_ends_in_the_request_for_the_next_one(code: ErrorCode) -> None:
    """IDEM-5: only the coordinator knows whether the name was taken. What may be in the log is looked up first."""
    lane = proven()
    m1, m2 = lane.send("M1", 1), lane.send("M2", 1)
    lane.lost(m2, 0.0, BACKOFF)
    assert lane.refused(m1, code, 0.0, BACKOFF, WrittenAs.NAMED) is SendVerdict.RETRY
    assert lane.next_step(1.0) is Step.LOOK_BACK
    lane.looked_back({}, lane.in_doubt())
    assert lane.next_step(1.0) is Step.BUMP
    lane.renumber(NEXT)
    assert [sent.stamp for sent in lane] == [Stamp(*NEXT, Sequence(0)), Stamp(*NEXT, Sequence(1))]


@pytest.mark.parametrize("code", sorted(FENCING | TRANSACTION_OVER))
def test_in_a_transaction_a_stale_epoch_ends_the_transaction_and_not_the_producer(code: ErrorCode) -> None:
    lane = proven()
    m1 = lane.send("M1", 1)
    assert lane.refused(m1, code, 0.0, BACKOFF, WrittenAs.IN_TRANSACTION) is SendVerdict.ABORT
    assert lane.give_up(m1) == "no"


def test_an_error_that_names_an_offset_came_after_the_append_and_leaves_doubt() -> None:
    """PROD-8: a leader that loses its leadership while it waits for its followers answers so."""
    lane = proven()
    m1 = lane.send("M1", 1)
    assert lane.refused(m1, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.0, BACKOFF, appended=True) is SendVerdict.RETRY
    assert m1.persisted == "unknown"
    m1 = lane.resend()
    assert lane.refused(m1, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.0, BACKOFF) is SendVerdict.RETRY
    assert m1.persisted == "unknown"  # the second attempt says nothing about the first


def test_outside_of_transactions_a_record_waits_for_the_marker_of_the_one_before() -> None:
    lane = proven()
    m1 = lane.send("M1", 1)
    assert lane.refused(m1, ErrorCode.INVALID_TXN_STATE, 0.0, BACKOFF, WrittenAs.NAMED) is SendVerdict.RETRY
    assert lane.next_step(0.0) is Step.WAIT
    assert lane.next_step(1.0) is Step.RESEND


def test_after_a_long_idle_time_the_next_batch_goes_alone_again() -> None:
    lane = proven()
    assert lane.next_step(PROOF_LASTS + 1) is Step.SEND
    lane.send("M1", 1)
    assert lane.next_step(PROOF_LASTS + 1) is Step.WAIT


def test_sequences_go_on_at_0_after_the_last_one() -> None:
    lane: Flight[str] = Flight()
    lane.begin(ME, Sequence(MAX_SEQUENCE - 1))
    lane.acknowledged(lane.send("straddles", 3), Offset(0), 0.0)
    assert lane.send("next", 1).stamp.sequence == 1


def test_without_idempotence_one_batch_is_in_flight_and_doubt_ends_in_sending_again() -> None:
    """PROD-4."""
    lane: Flight[str] = Flight(idempotent=False)
    m1 = lane.send("M1", 1)
    assert m1.stamp is NO_STAMP
    assert lane.next_step(0.0) is Step.WAIT
    lane.lost(m1, 0.0, BACKOFF)
    assert lane.next_step(0.1) is Step.RESEND
    lane.acknowledged(lane.resend(), Offset(0), 0.0)
    m2 = lane.send("M2", 1)
    lane.refused(m2, ErrorCode.INVALID_RECORD, 0.0, BACKOFF)
    assert lane.give_up(m2) == "no"
    assert lane.next_step(0.1) is Step.SEND


class Partition:
    """A server's partition in ten lines: the rule of `core/producers/dedup.py` and a list."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.stamps: dict[Stamp, Offset] = {}
        self.producers = ProducerTable()

    def append(self, stamp: Stamp, records: list[int]) -> tuple[ErrorCode, Offset]:
        last = sequence.last_of(stamp.sequence, len(records))
        batch = SequencedBatch(stamp.pid, stamp.epoch, stamp.sequence, last, len(records), None, 0)
        match self.producers.judge(batch):
            case Accept():
                offset = self.stamps[stamp] = Offset(len(self.log))
                self.producers.apply(batch, offset, 0)
                self.log += records
                return ErrorCode.NONE, offset
            case Duplicate(base_offset=offset):
                return ErrorCode.NONE, offset
            case StaleEpoch():
                return ErrorCode.INVALID_PRODUCER_EPOCH, Offset(-1)
            case _:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, Offset(-1)


FATES = ["answered"] * 4 + ["request lost", "answer lost", "cut", "not leader", "too large", "expired", "near its end"]
FATES += ["stale leader"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(FATES), max_size=60),
    st.lists(st.integers(1, 4), min_size=1, max_size=20),
    st.integers(1, 8),
    st.lists(st.just(2), max_size=3),
)
def test_whatever_happens_each_record_is_there_at_most_once_and_in_order(
    fates: list[str], counts: list[int], limit: int, idle_days: list[int]
) -> None:
    """IDEM-6, PROD-4: what was acknowledged is in the log at that offset, what was failed as "no" is not."""
    partition, lane = Partition(), Flight[list[int]](limit=limit)
    lane.begin(ME)
    numbers = iter(range(1_000_000))
    waiting = deque([next(numbers) for _ in range(count)] for count in counts)
    wire: deque[tuple[Sent[list[int]], Stamp]] = deque()
    acknowledged: dict[int, int] = {}
    failed: list[int] = []
    fate, now = iter(fates), 0.0

    def note(sent: Sent[list[int]], offset: Offset) -> None:
        acknowledged.update({record: offset + index for index, record in enumerate(sent.batch)})

    while waiting or wire or len(lane):
        now += 1
        if idle_days and not len(lane) and not wire:  # long enough for the server to forget
            now += idle_days.pop() * 86_400
            partition.producers.clear()
        step = lane.next_step(now)
        if step is Step.SEND and waiting:
            batch = waiting.popleft()
            sent = lane.send(batch, len(batch))
            wire.append((sent, sent.stamp))
        elif step is Step.RESEND:
            sent = lane.resend()
            wire.append((sent, sent.stamp))
        elif step is Step.LOOK_BACK:
            for sent, offset in lane.looked_back(partition.stamps, lane.in_doubt()):
                note(sent, offset)
        elif step is Step.BUMP:
            assert lane.identity is not None
            lane.renumber(Identity(lane.identity.pid, Epoch(lane.identity.epoch + 1)))
        if not wire or (step is Step.SEND and waiting and now % 2):
            continue
        what = next(fate, "answered")
        if what == "near its end":
            for sent in lane:
                lane.wants_look_back(sent)
            continue
        if what == "expired":  # in flight; whether it arrives is decided afterwards, and its answer is not waited for
            sent, stamp = wire.popleft()
            lane.give_up(sent)
            if now % 2:
                partition.append(stamp, sent.batch)
            continue
        if what == "cut":  # everything under way arrives or not, no answer comes back
            while wire:
                sent, stamp = wire.popleft()
                if len(wire) % 2:
                    partition.append(stamp, sent.batch)
                lane.lost(sent, now, BACKOFF)
            continue
        sent, stamp = wire.popleft()
        if what == "request lost":
            lane.lost(sent, now, BACKOFF)
            continue
        code, offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, Offset(-1)
        if what == "too large":
            code = ErrorCode.MESSAGE_TOO_LARGE
        elif what == "stale leader":
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif what != "not leader":
            code, offset = partition.append(stamp, sent.batch)
        if what == "answer lost":
            lane.lost(sent, now, BACKOFF)
        elif code is ErrorCode.NONE:
            lane.acknowledged(sent, offset, now)
            note(sent, offset)
        elif lane.refused(sent, code, now, BACKOFF, WrittenAs.NAMED) is SendVerdict.GIVE_UP:
            if len(sent.batch) > 1 and not sent.in_doubt:
                lane.split(sent, [(sent.batch[:1], 1), (sent.batch[1:], len(sent.batch) - 1)])
            elif lane.give_up(sent) == "no":
                failed += sent.batch

    assert len(set(partition.log)) == len(partition.log)
    assert partition.log == sorted(partition.log)
    assert all(partition.log[offset] == record for record, offset in acknowledged.items())
    assert not set(failed) & set(partition.log)


def test_batches_of_an_aborted_transaction_are_resent_in_order_under_the_next_epoch() -> None:
    """Acknowledged or not: nothing of it counts. Answers and looks into the log that still come are about the past."""
    lane = proven()
    lost, under_way = lane.send("M1", 2), lane.send("M2", 1)
    lane.lost(lost, 0.0, BACKOFF, overdue=True)
    old = lost.stamp
    assert lane.start_over([("M0", 1)]) == ["M2"]
    assert batches(lane) == ["M0", "M1", "M2"]
    assert under_way not in list(lane)
    assert lane.looked_back({old: Offset(5)}, []) == []
    assert lane.next_step(10.0) is Step.BUMP
    assert [sent.persisted for sent in lane] == ["no"] * 3
    lane.renumber(NEXT)
    assert [sent.stamp for sent in lane] == [
        Stamp(*NEXT, Sequence(0)),
        Stamp(*NEXT, Sequence(1)),
        Stamp(*NEXT, Sequence(3)),
    ]
    assert lane.next_step(10.0) is Step.RESEND
    assert lane.resend().batch == "M0"
