"""A producer that owns, stepped: the claim's place in the order, signs of life, and what becomes of every ticket when
the connection is lost (OWN-7 to OWN-9)."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.owner_connection import PendingClaim
from fencepost.client.own.claim import Loss
from fencepost.client.produce.ticket import Ticket
from fencepost.core.own.claim_request import Refused, check_claim
from fencepost.errors import Closed, ErrorCode, Fenced, FencepostError, ServerError, Unreachable
from tests.support import stepped_producer
from tests.support.scripted import Api, DelayedAnswer, ErrorAnswer, Fate, ScriptedCluster, ScriptedRequest
from tests.support.stepped_producer import SteppedProducer

pytestmark = pytest.mark.unit


def cluster(nodes: int = 1, *, knows_own: bool = True, **topics: int) -> ScriptedCluster:
    return stepped_producer.cluster(nodes, knows_own=knows_own, **(topics or {"t": 1}))


def asks(
    producer: SteppedProducer,
    *names: str,
    generation: int | None = 1,
    wait: float | None = None,
    after: int | None = None,
    session: float = 0.0,
) -> PendingClaim:
    wanted = check_claim("g", names or ["t-0"], generation=generation, wait=wait, after=after, session=session)
    return producer.sender.owner.claim(wanted)


def owner(on: ScriptedCluster, *, session: float = 0.0, **options: object) -> SteppedProducer:
    """Owns t-0, and its first record is acknowledged: from here on it pipelines."""
    producer = SteppedProducer(on, **options)  # type: ignore[arg-type]
    claim = asks(producer, session=session)
    producer.step_until(claim.outcome.done)
    claim.outcome.result()
    producer.send("t", b"first", partition=0)
    producer.settle()
    return producer


def sends(producer: SteppedProducer, *values: str) -> list[Ticket]:
    """Each a batch of its own, under way as far as there is room."""
    return [producer.send_alone("t", value, partition=0) for value in values]


def persisted(ticket: Ticket) -> str:
    """What the ticket says; Delivered says yes."""
    error = ticket.exception(0)
    if error is None:
        return "yes"
    assert isinstance(error, Fenced), error
    return error.persisted


def dialled(producer: SteppedProducer) -> int:
    return len(producer.network._links)


def values(on: ScriptedCluster) -> list[str]:
    return [(value or b"").decode() for value in on.values("t", 0)]


# --- claiming ---


def test_the_claim_goes_over_the_connection_that_carries_the_records() -> None:
    on = cluster()
    owner(on)
    [(_, name, holding)] = list(on.ownership)
    assert name == "t-0"
    assert values(on) == ["first"]
    assert [link for network in on._networks for link in network._links] == [holding.owner]


def test_a_claim_is_sent_when_the_server_is_reached() -> None:
    on = cluster()
    on.kill(0)
    producer = SteppedProducer(on)
    claim = asks(producer)
    producer.run_for(1.0)
    assert not claim.outcome.done()
    on.revive(0)
    producer.step_until(claim.outcome.done)
    assert claim.outcome.result()[0].generation == 1


@pytest.mark.parametrize("spoken", [0, 1])
def test_a_claim_is_asked_in_the_newest_version_that_the_server_speaks(spoken: int) -> None:
    """OWN-1: an older server is asked in version 0, where the group is always named."""
    on = cluster()
    on.versions = {**on.versions, Api.OWN: (0, spoken)}
    producer = SteppedProducer(on)
    claim = asks(producer)
    producer.step_until(claim.outcome.done)
    assert [(row.name, row.generation) for row in claim.outcome.result()] == [("t-0", 1)]
    assert [request.version for request in on.requests(Api.OWN)] == [spoken]


def test_a_refused_claim_says_the_current_generation_and_changes_nothing() -> None:
    """OWN-4."""
    on = cluster()
    on.take_over("g", "t-0", generation=7)
    producer = SteppedProducer(on)
    claim = asks(producer, generation=0, after=99)
    producer.step_until(claim.outcome.done)
    with pytest.raises(Refused) as caught:
        claim.outcome.result()
    assert caught.value.current_generation == 1
    assert caught.value.token == 1
    assert on.ownership.owns("somebody else", "g", "t-0")
    # An ordinary producer, whose connection may end and be dialled anew.
    ticket = producer.send("t", b"v", partition=0)
    on.next(Api.PRODUCE, Fate.CUT)
    producer.settle()
    assert ticket.exception(0) is None
    assert values(on) == ["v"]


def test_a_claim_whose_answer_is_lost_leaves_an_ordinary_producer() -> None:
    """The connection is gone, so it owns nothing: no doubt about that."""
    on = cluster()
    producer = SteppedProducer(on)
    on.next(Api.OWN, Fate.CUT)
    claim = asks(producer)
    producer.step_until(claim.outcome.done)
    with pytest.raises(Unreachable):
        claim.outcome.result()
    assert list(on.ownership) == []
    ticket = producer.send("t", b"v", partition=0)
    producer.settle()
    assert ticket.exception(0) is None


@pytest.mark.parametrize("on", [cluster(knows_own=False), cluster(nodes=2)], ids=["kafka", "more than one server"])
def test_a_server_that_does_not_know_own_is_named(on: ScriptedCluster) -> None:
    producer = SteppedProducer(on)
    claim = asks(producer)
    producer.step_until(claim.outcome.done)
    with pytest.raises(ServerError, match="does not know `own`"):
        claim.outcome.result()


def asked_for(request: ScriptedRequest) -> list[str]:
    return [topic.name for topic in request.message.topics]


@pytest.mark.parametrize("wait", [None, 5.0], ids=["at once", "in line"])
def test_a_claims_topics_are_looked_up_first_so_that_its_first_record_goes_at_once(
    wait: float | None,
) -> None:
    on = cluster()
    producer = SteppedProducer(on)
    claim = asks(producer, generation=1 if wait is None else None, wait=wait)
    producer.step_until(claim.outcome.done)
    before = [request.key for request in on.seen]
    assert before[-2:] == [Api.METADATA, Api.OWN]
    assert asked_for(on.requests(Api.METADATA)[-1]) == ["t"]
    ticket = producer.send("t", b"first", partition=0)
    producer.settle()
    assert ticket.exception(0) is None
    assert [request.key for request in on.seen[len(before) :]] == [Api.PRODUCE]


def test_a_claim_asks_for_no_topic_that_is_known() -> None:
    on = cluster(t=2)
    producer = owner(on)
    asked = len(on.requests(Api.METADATA))
    again = asks(producer, "t-1")
    producer.step_until(again.outcome.done)
    assert len(on.requests(Api.METADATA)) == asked


def test_a_name_that_looks_like_a_partition_creates_no_topic_and_is_asked_for_once() -> None:
    on = cluster()
    on.creates_topics = True
    producer = SteppedProducer(on)
    claim = asks(producer, "nightly-1", "no partition", "-1")
    producer.step_until(claim.outcome.done)
    producer.run_for(30.0)
    assert list(on.logs) == ["t"]
    assert [request for request in on.requests(Api.METADATA) if "nightly" in asked_for(request)][1:] == []
    # Whoever then sends to a topic of this name means it.
    ticket = producer.send("nightly", b"v")
    producer.settle()
    assert ticket.exception(0) is None


def test_a_claim_of_very_many_topics_asks_for_none_of_them() -> None:
    on = cluster()
    producer = SteppedProducer(on)
    claim = asks(producer, *(f"topic{number}-0" for number in range(101)))
    producer.step_until(claim.outcome.done)
    assert [asked_for(request) for request in on.requests(Api.METADATA)] == [[]]


@pytest.mark.parametrize("knows_own", [True, False], ids=["fencepost", "kafka"])
def test_the_connection_that_carries_the_data_says_which_backend_claims(knows_own: bool) -> None:
    on = cluster(knows_own=knows_own)
    producer = SteppedProducer(on)

    def offered() -> bool | None:
        return producer.sender.brokers.offers_own

    assert offered() is None
    producer.send("t", b"v", partition=0)
    producer.settle()
    assert offered() is knows_own
    # Without a connection nothing is known: another server may be there next time.
    on.kill(0)
    producer.run_for(1.0)
    assert offered() is None


def test_while_a_claim_waits_nothing_else_is_sent_and_everything_is_sent_then() -> None:
    on = cluster()
    producer = SteppedProducer(on, metadata_max_age=5.0)
    on.next(Api.OWN, DelayedAnswer(300.0))
    claim = asks(producer, generation=None, wait=1000.0)
    producer.step_until(lambda: bool(on.requests(Api.OWN)))
    seen = len(on.seen)
    ticket = producer.send("t", b"v", partition=0)
    producer.run_for(100.0)
    assert len(on.seen) == seen
    producer.step_until(claim.outcome.done)
    assert claim.outcome.result()[0].generation == 1
    late = producer.send("t", b"w", partition=0)
    producer.settle()
    assert (ticket.done(), late.exception(0)) == (True, None)


def test_a_claim_that_waits_and_is_given_up_leaves_the_line_with_its_connection() -> None:
    on = cluster()
    producer = SteppedProducer(on)
    on.next(Api.OWN, DelayedAnswer(300.0))
    claim = asks(producer, generation=None, wait=1000.0)
    producer.step_until(lambda: bool(on.requests(Api.OWN)))
    producer.sender.owner.give_up(claim)
    with pytest.raises(Closed):
        claim.outcome.result(0)
    assert list(on.ownership) == []
    ticket = producer.send("t", b"v", partition=0)
    producer.settle()
    assert ticket.exception(0) is None


def test_a_claim_given_up_by_an_owner_is_given_back_when_it_is_granted() -> None:
    on = cluster()
    producer = owner(on)
    on.next(Api.OWN, DelayedAnswer(300.0))
    claim = asks(producer, "other", generation=None, wait=1000.0)
    producer.step_until(lambda: len(on.requests(Api.OWN)) == 2)
    producer.sender.owner.give_up(claim)
    producer.run_for(301.0)
    assert [name for _, name, _ in on.ownership] == ["t-0"]
    assert producer.sender.fenced is None


def test_a_claim_given_up_when_it_was_granted_just_now_is_given_back() -> None:
    """Ctrl-C, or the end of its patience: nobody knows that it owns anything."""
    on = cluster()
    producer = owner(on)
    claim = asks(producer, "other", "t-0")
    producer.step_until(claim.outcome.done)
    assert len(list(on.ownership)) == 2
    producer.sender.owner.give_up(claim)
    producer.step_until(lambda: len(list(on.ownership)) == 1)
    assert [name for _, name, _ in on.ownership] == ["t-0"], "which it owned before"
    assert producer.sender.fenced is None


def test_an_owner_with_a_session_does_not_wait_for_more() -> None:
    producer = owner(cluster(), session=4.0)
    with pytest.raises(FencepostError, match="cannot wait"):
        asks(producer, "other", generation=None, wait=1.0)


# --- one connection ---


def test_an_owner_opens_no_second_connection() -> None:
    on = cluster()
    producer = owner(on, metadata_max_age=5.0)
    before = dialled(producer)
    asked = len(on.requests(Api.METADATA))
    producer.run_for(60.0)
    producer.send("t", b"v", partition=0)
    producer.settle()
    assert len(on.requests(Api.METADATA)) > asked
    assert dialled(producer) == before


def test_a_released_producer_goes_on_without_and_may_reconnect() -> None:
    on = cluster()
    producer = owner(on, session=4.0)
    released = producer.sender.owner.release("g", ["t-0"])
    producer.step_until(released.outcome.done)
    assert list(on.ownership) == []
    beats = len(on.requests(Api.OWN))
    on.next(Api.PRODUCE, Fate.CUT)
    ticket = producer.send("t", b"v", partition=0)
    producer.settle()
    producer.run_for(20.0)
    assert ticket.exception(0) is None
    assert values(on) == ["first", "v"]
    assert len(on.requests(Api.OWN)) == beats


def test_of_two_claims_one_is_released_and_the_other_still_counts() -> None:
    on = cluster()
    producer = owner(on)
    second = asks(producer, "u")
    producer.step_until(second.outcome.done)
    released = producer.sender.owner.release("g", ["t-0"])
    producer.step_until(released.outcome.done)
    on.take_over("g", "u")
    producer.step_until(lambda: producer.sender.fenced is not None)
    with pytest.raises(Fenced):
        producer.send("t", b"v", partition=0)


# --- signs of life ---


def test_an_idle_owner_gives_a_sign_of_life_four_times_per_session() -> None:
    on = cluster()
    producer = owner(on, session=8.0)
    before = len(on.requests(Api.OWN))
    producer.run_for(40.0)
    beats = on.requests(Api.OWN)[before:]
    assert 18 <= len(beats) <= 20
    assert all(not beat.message.resources and not beat.message.release for beat in beats)


def test_an_owner_without_a_session_is_not_idle_for_minutes() -> None:
    on = cluster()
    producer = owner(on)
    before = len(on.requests(Api.OWN))
    producer.run_for(600.0)
    assert len(on.requests(Api.OWN)) - before >= 10


def test_an_owner_whose_server_no_longer_answers_is_fenced() -> None:
    on = cluster()
    producer = owner(on, session=8.0, request_timeout=5.0)
    on.next(Api.OWN, Fate.SWALLOW)
    producer.step_until(lambda: producer.sender.fenced is not None)
    with pytest.raises(Fenced, match="did not answer"):
        producer.send("t", b"v", partition=0)


# --- the lease ---


def test_an_owner_that_was_stopped_for_a_session_knows_before_any_input_or_output() -> None:
    """OWN-8: by the clock alone. The connection is then closed, and nothing more is sent over it."""
    on = cluster()
    producer = owner(on, session=4.0)
    loss = Loss(producer.sender.lease, producer.clock)
    seen = len(on.seen)
    producer.clock.advance(3.0)
    assert loss.look() is None
    producer.clock.advance(2.0)
    cause = loss.look()
    assert cause is not None
    assert "the lease is over" in str(cause)
    assert len(on.seen) == seen
    late = producer.send("t", b"late", partition=0)
    producer.step_until(late.done)
    assert persisted(late) == "no"
    assert len(on.seen) == seen
    with pytest.raises(Fenced, match="the lease is over"):
        producer.send("t", b"later", partition=0)


def test_any_answer_renews_the_lease_and_not_only_that_of_a_heartbeat() -> None:
    """The server counts every request, so a heartbeat that waits behind large requests costs nothing."""
    on = cluster()
    producer = owner(on, session=4.0)
    on.choose = lambda request: Fate.SWALLOW if request.key == Api.OWN else Fate.ANSWER
    before = producer.sender.lease.end
    producer.clock.advance(0.5)
    producer.send("t", b"v", partition=0)
    producer.settle()
    assert producer.sender.lease.end > before


def test_a_silent_server_costs_the_ownership_after_the_session() -> None:
    """OWN-8: also if nobody asks and nothing is sent."""
    on = cluster()
    producer = owner(on, session=4.0, request_timeout=1000.0)
    on.choose = lambda request: Fate.IGNORE
    began = producer.clock.monotonic()
    producer.step_until(lambda: producer.sender.fenced is not None)
    assert producer.clock.monotonic() - began <= 4.2  # the turn that closes the connection waits for another one


def test_a_claim_that_waited_for_long_is_told_when_a_heartbeat_is_answered() -> None:
    """Its answer may be old: the server counts from the grant, and the claimant knows only when it has asked."""
    on = cluster()
    producer = SteppedProducer(on)
    on.next(Api.OWN, DelayedAnswer(300.0), DelayedAnswer(1.0))
    claim = asks(producer, generation=None, wait=1000.0, session=4.0)
    producer.step_until(lambda: len(on.requests(Api.OWN)) == 2)
    asked_at = producer.clock.monotonic()
    assert not claim.outcome.done()
    producer.step_until(claim.outcome.done)
    assert producer.clock.monotonic() >= asked_at + 1.0
    assert producer.sender.lease.end == asked_at + 4.0
    assert not on.requests(Api.OWN)[1].message.resources


def test_a_claim_whose_first_heartbeat_is_not_answered_owns_nothing() -> None:
    on = cluster()
    producer = SteppedProducer(on, request_timeout=100.0)
    on.next(Api.OWN, DelayedAnswer(300.0), Fate.IGNORE)
    claim = asks(producer, generation=None, wait=1000.0, session=4.0)
    producer.step_until(lambda: len(on.requests(Api.OWN)) == 2)
    began = producer.clock.monotonic()
    producer.step_until(claim.outcome.done)
    assert producer.clock.monotonic() - began <= 4.1
    with pytest.raises(Unreachable):
        claim.outcome.result()


def test_an_owner_does_not_wait_for_more_with_a_session() -> None:
    """The session may begin at the server long before the answer comes, and until then no heartbeat is answered."""
    producer = owner(cluster())
    with pytest.raises(FencepostError, match="cannot wait"):
        asks(producer, "other", generation=None, wait=1.0, session=4.0)


# --- severed ---


def test_what_never_left_is_not_persisted() -> None:
    """OWN-9."""
    on = cluster()
    producer = owner(on)
    waiting = producer.send("t", b"queued", partition=0)
    unplaced = producer.send("unknown", b"v")
    on.take_over("g", "t-0")
    producer.step_until(lambda: waiting.done() and unplaced.done())
    assert (persisted(waiting), persisted(unplaced)) == ("no", "no")
    assert values(on) == ["first"]


def test_in_flight_records_in_the_log_are_delivered_and_others_reported_absent() -> None:
    """OWN-9: the log turns unknown into yes or no."""
    on = cluster()
    producer = owner(on)
    on.next(Api.PRODUCE, DelayedAnswer(5.0), DelayedAnswer(5.0), Fate.LOSE)
    there, also, lost = sends(producer, "M1", "M2", "M3")
    behind = producer.send("t", b"M4", partition=0)
    on.take_over("g", "t-0")
    producer.step_until(lambda: all(ticket.done() for ticket in (there, also, lost, behind)))
    assert [persisted(ticket) for ticket in (there, also, lost, behind)] == ["yes", "yes", "no", "no"]
    assert (there.result(0).offset, also.result(0).offset) == (1, 2)
    assert values(on) == ["first", "M1", "M2"]


def test_a_batch_in_doubt_from_before_is_looked_for_too() -> None:
    on = cluster()
    producer = owner(on)
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.REQUEST_TIMED_OUT))
    [doubtful] = sends(producer, "M1")
    producer.step()
    on.take_over("g", "t-0")
    producer.step_until(doubtful.done)
    assert persisted(doubtful) == "no"


def test_no_record_is_reported_absent_while_the_server_reads_the_lost_connection() -> None:
    on = cluster()
    producer = owner(on, request_timeout=20.0)
    on.next(Api.PRODUCE, Fate.LOSE)
    on.notices_ends = False
    [ticket] = sends(producer, "M1")
    producer.run_for(10.0)
    assert producer.sender.fenced is not None
    assert not ticket.done()
    assert len(on.requests(Api.DESCRIBE_OWNERS)) > 2
    assert on.requests(Api.FETCH) == []
    on.ownership.ended(next(iter(on.ownership))[2].owner)
    producer.step_until(ticket.done)
    assert persisted(ticket) == "no"


def test_what_cannot_be_found_out_in_time_stays_unknown() -> None:
    on = cluster()
    producer = owner(on, request_timeout=20.0)
    on.next(Api.PRODUCE, DelayedAnswer(5.0))
    [ticket] = sends(producer, "M1")
    on.kill(0)
    producer.run_for(19.0)
    assert not ticket.done()
    producer.run_for(2.0)
    assert persisted(ticket) == "unknown"


def test_a_server_that_comes_back_is_asked_what_it_has() -> None:
    on = cluster()
    producer = owner(on)
    on.next(Api.PRODUCE, DelayedAnswer(5.0))
    [ticket] = sends(producer, "M1")
    on.kill(0)
    producer.run_for(3.0)
    assert not ticket.done()
    on.revive(0)
    producer.step_until(ticket.done)
    assert persisted(ticket) == "yes"


def test_without_idempotence_nobody_can_tell_whose_a_batch_is() -> None:
    on = cluster()
    producer = owner(on, idempotent=False)
    on.next(Api.PRODUCE, DelayedAnswer(5.0))
    [ticket] = sends(producer, "M1")
    on.take_over("g", "t-0")
    producer.step_until(ticket.done)
    assert persisted(ticket) == "unknown"


def test_a_fenced_producer_does_not_come_back_by_itself() -> None:
    on = cluster()
    producer = owner(on)
    on.take_over("g", "t-0")
    producer.step_until(lambda: producer.sender.fenced is not None)
    with pytest.raises(Fenced):
        producer.send("t", b"v", partition=0)
    with pytest.raises(Fenced):
        asks(producer)
    before, seen = dialled(producer), len(on.seen)
    for _ in range(100):
        producer.sender.run_once(10.0)
    assert (dialled(producer), len(on.seen)) == (before, seen)


def test_a_release_that_waits_to_be_sent_when_the_connection_is_lost_says_so() -> None:
    on = cluster()
    producer = owner(on)
    on.take_over("g", "t-0")
    producer.step_until(lambda: producer.sender.fenced is not None)
    with pytest.raises(Fenced):
        producer.sender.owner.release("g", ["t-0"])


def test_an_abandoned_producer_leaves_no_ticket_unsettled() -> None:
    on = cluster()
    producer = owner(on)
    on.next(Api.PRODUCE, DelayedAnswer(5.0))
    [ticket] = sends(producer, "M1")
    on.kill(0)
    producer.run_for(1.0)
    producer.sender.abandon()
    assert persisted(ticket) == "unknown"


def test_a_claim_waits_for_what_is_in_flight_on_another_connection() -> None:
    """OWN-9: it could arrive after the claim, and even after the next owner's. The side connection is closed then."""
    on = cluster(flood=1, t=1)
    producer = SteppedProducer(on, batch_size=256 << 10)
    producer.send("flood", b"first")
    producer.send("t", b"first")
    producer.settle()
    for _ in range(20):
        producer.send("flood", b"x" * (100 << 10))
    producer.sender.run_once(0.0)
    (main,) = producer.sender.brokers
    producer.send("t", b"dials")
    producer.step_until(lambda: (side := producer.sender.brokers.side(main.address)) is not None and side.is_ready)
    producer.settle()
    on.deal(DelayedAnswer(1.0), Api.PRODUCE)
    for _ in range(20):
        producer.send("flood", b"x" * (100 << 10))
    producer.sender.run_once(0.0)
    aside = producer.send("t", b"aside")
    producer.sender.run_once(0.0)
    side = producer.sender.brokers.side(main.address)
    assert side is not None
    assert side.in_flight == 1
    pending = producer.sender.owner.claim(check_claim("g", ["t-0"], generation=1))
    producer.run_for(0.5)
    assert not on.requests(Api.OWN)
    producer.step_until(pending.outcome.done)
    assert aside.done()
    assert producer.sender.brokers.side(main.address) is None
    on.seen.clear()
    producer.send("t", b"owned")
    producer.settle()
    assert {request.connection for request in on.requests(Api.PRODUCE)} == {0}


def test_a_posted_claim_is_sent_by_the_next_turn_and_its_caller_hears_of_every_end() -> None:
    on = cluster()
    producer = SteppedProducer(on)
    pending = producer.sender.post_claim(check_claim("g", ["t-0"], generation=1, session=5.0))
    producer.step_until(pending.outcome.done)
    assert [row.name for row in pending.outcome.result()] == ["t-0"]
    waiting = producer.sender.post_claim(check_claim("g", ["t-1"], wait=3.0))
    producer.step_until(waiting.outcome.done)
    with pytest.raises(FencepostError, match="cannot wait for more"):
        waiting.outcome.result()
    on.next(Api.PRODUCE, Fate.CUT)
    producer.send("t", b"cut off", partition=0)
    producer.step_until(lambda: producer.sender.fenced is not None)
    late = producer.sender.post_claim(check_claim("g", ["t-0"], generation=2))
    producer.step_until(late.outcome.done)
    with pytest.raises(Fenced):
        late.outcome.result()
    producer.sender._thread_calls.close()
    closed = producer.sender.post_claim(check_claim("g", ["t-0"], generation=2))
    with pytest.raises(Closed):
        closed.outcome.result(0)
