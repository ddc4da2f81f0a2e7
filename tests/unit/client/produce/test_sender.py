"""The send thread, stepped turn by turn: every failure of the source document, without a socket and without waiting
(PROD-2, PROD-10)."""

from __future__ import annotations

import logging

import pytest

from fencepost.client.produce.ticket import Delivered, Ticket
from fencepost.errors import ErrorCode, Expired, Fenced, RecordTooLarge, SendFailed
from fencepost.kernel import check_batch, partition_for_key
from tests.support.scripted import Api, DelayedAnswer, ErrorAnswer, Fate, ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit


def proven(on: ScriptedCluster, topic: str = "t", *, partition: int = 0, **options: object) -> SteppedProducer:
    """A producer whose first record is acknowledged: from here on it pipelines."""
    producer = SteppedProducer(on, **options)  # type: ignore[arg-type]
    producer.send(topic, b"first", partition=partition)
    producer.settle()
    return producer


def values(on: ScriptedCluster, topic: str = "t", partition: int = 0) -> list[str]:
    return [(value or b"").decode() for value in on.values(topic, partition)]


def three(producer: SteppedProducer) -> list[Ticket]:
    """Send M1, M2 and M3, each in its own batch, all three in flight."""
    return [producer.send_alone("t", name, partition=0) for name in ("M1", "M2", "M3")]


def expired(ticket: Ticket) -> str:
    """Return what an expired record says about being persisted."""
    error = ticket.exception()
    assert isinstance(error, Expired)
    return error.persisted


def test_a_record_is_delivered_and_its_ticket_says_where() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    ticket = producer.send("t", b"value", key=b"key", headers=[("h", b"1")])
    assert not ticket.done()
    producer.settle()
    assert ticket.done()
    assert ticket.result() == Delivered("t", 0, 0, 1_700_000_000_000)
    record = on.records("t", 0)[0]
    assert (record.key, record.value, record.headers) == (b"key", b"value", (("h", b"1"),))


def test_the_first_send_to_a_new_topic_waits_for_no_metadata_and_keeps_the_order() -> None:
    """PROD-5."""
    on = cluster(t=3)
    producer = SteppedProducer(on)
    tickets = [producer.send("t", str(i), key=f"k{i % 5}") for i in range(50)]
    assert on.seen == []
    producer.settle()
    for partition in range(3):
        mine = [str(i) for i in range(50) if partition_for_key(f"k{i % 5}".encode(), 3) == partition]
        assert values(on, "t", partition) == mine
    assert all(ticket.exception() is None for ticket in tickets)


def test_keyed_and_keyless_records_keep_their_order_in_a_single_partition() -> None:
    """PROD-4, PROD-5."""
    on = cluster(t=1)
    producer = proven(on)
    for i in range(10):
        producer.send("t", str(i), key=b"k" if i % 2 else None)
    producer.settle()
    assert values(on) == ["first", *map(str, range(10))]


def test_keyless_records_go_as_a_whole_batch_to_a_partition_that_can_take_them() -> None:
    on = cluster(t=4)
    producer = proven(on)
    for i in range(100):
        producer.send("t", str(i))
    producer.settle()
    logs = [values(on, "t", partition) for partition in range(4)]
    assert sorted(len(log) - (1 if "first" in log else 0) for log in logs) == [0, 0, 0, 100]


def test_m2_refused_never_lets_m3_overtake_it() -> None:
    """IDEM-6: M1 M2 M3, the second one fails."""
    on = cluster(t=1)
    producer = proven(on)
    on.next(Api.PRODUCE, Fate.ANSWER, ErrorAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER), Fate.ANSWER)
    tickets = three(producer)
    assert len(on.requests(Api.PRODUCE)) == 4  # all three are under way before anything is answered
    producer.settle()
    assert values(on) == ["first", "M1", "M2", "M3"]
    assert [ticket.result().offset for ticket in tickets] == [1, 2, 3]


def test_an_answer_lost_after_the_append_leaves_one_copy_and_the_right_offset() -> None:
    """The case that proves the promise: the batch was written, the answer was lost."""
    on = cluster(t=1)
    producer = proven(on)
    on.next(Api.PRODUCE, Fate.CUT)
    ticket = producer.send("t", b"once", partition=0)
    producer.settle()
    assert values(on) == ["first", "once"]
    assert ticket.result().offset == 1
    assert len(on.requests(Api.PRODUCE)) == 3


def test_a_request_without_an_answer_is_sent_again_after_the_request_timeout() -> None:
    on = cluster(t=1)
    producer = proven(on, request_timeout=5.0)
    on.next(Api.PRODUCE, Fate.SWALLOW)
    started = producer.clock.monotonic()
    ticket = producer.send("t", b"once", partition=0)
    producer.settle()
    assert ticket.result().offset == 1
    assert values(on) == ["first", "once"]
    assert 5.0 <= producer.clock.monotonic() - started < 7.0


def test_several_requests_are_under_way_to_one_broker_at_once() -> None:
    """PROD-3: the second is sent before the first is answered."""
    on = cluster(t=1)
    producer = proven(on)
    on.next(Api.PRODUCE, DelayedAnswer(1.0), DelayedAnswer(1.0), DelayedAnswer(1.0))
    tickets = three(producer)
    assert [broker.requests for broker in producer.sender.reporting.look().brokers] == [3]
    assert not any(ticket.done() for ticket in tickets)
    producer.settle()
    assert values(on) == ["first", "M1", "M2", "M3"]


def test_a_whole_pipeline_lost_with_its_connection_is_sent_again_in_order() -> None:
    """PROD-3, PROD-4, IDEM-6."""
    on = cluster(t=1)
    producer = proven(on)
    on.next(Api.PRODUCE, Fate.ANSWER, Fate.CUT)
    tickets = three(producer)
    producer.settle()
    assert values(on) == ["first", "M1", "M2", "M3"]
    assert [ticket.result().offset for ticket in tickets] == [1, 2, 3]


def test_a_leader_that_moved_is_found_again() -> None:
    on = cluster(nodes=2, t=1)
    producer = proven(on)
    on.move_leader("t", 0, 1)
    ticket = producer.send("t", b"moved", partition=0)
    producer.settle()
    assert ticket.result().offset == 1
    assert [request.node for request in on.requests(Api.PRODUCE)] == [0, 0, 1]


def test_one_dead_broker_of_two_does_not_hold_up_the_other() -> None:
    """PROD-6."""
    on = cluster(nodes=2, t=2)
    producer = proven(on, partition=0, delivery_timeout=10.0)
    producer.send("t", b"first", partition=1)
    producer.settle()
    on.kill(1)
    stuck = producer.send("t", b"stuck", partition=1)
    fine = producer.send("t", b"fine", partition=0)
    started = producer.clock.monotonic()
    producer.step_until(fine.done)
    assert producer.clock.monotonic() - started < 0.1
    assert not stuck.done()
    on.revive(1)
    producer.settle()
    assert stuck.result().offset == 1


def test_records_without_a_key_avoid_the_dead_broker() -> None:
    """PROD-6: the undesignated queue is bound to no partition."""
    on = cluster(nodes=2, t=2)
    producer = proven(on, partition=0)
    on.kill(1)
    producer.run_for(0.5)
    tickets = [producer.send("t", str(i)) for i in range(10)]
    producer.settle()
    assert {ticket.result().partition for ticket in tickets} == {0}


def test_slow_metadata_of_a_new_topic_does_not_delay_a_known_one() -> None:
    """PROD-7."""
    on = cluster(t=1, new=1)
    producer = proven(on)
    on.next(Api.METADATA, DelayedAnswer(3.0))
    late = producer.send("new", b"late")
    # On one connection a broker answers in order, so what is slow there must not be the only thing there is: the
    # record of the known topic is written before the answer about the new one has come.
    known = producer.send("t", b"known", partition=0)
    producer.step(3)
    assert values(on) == ["first", "known"]
    assert not late.done()
    producer.settle()
    assert late.result().offset == 0
    assert known.result().offset == 1


def test_an_unknown_topic_fails_with_its_cause_and_the_rest_goes_on() -> None:
    on = cluster(t=1)
    producer = proven(on, unknown_topic_timeout=2.0)
    lost = producer.send("nowhere", b"lost")
    fine = producer.send("t", b"fine", partition=0)
    producer.settle()
    assert fine.result().offset == 1
    error = lost.exception()
    assert isinstance(error, SendFailed)
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error.persisted == "no"
    assert "nowhere" in str(error)


def test_a_topic_that_the_server_creates_on_first_use_is_waited_for() -> None:
    on = cluster()
    on.creates_topics = True
    producer = SteppedProducer(on)
    ticket = producer.send("new", b"value")
    producer.settle()
    assert ticket.result() == Delivered("new", 0, 0, 1_700_000_000_000)


def test_a_partition_that_does_not_exist_is_said_so() -> None:
    on = cluster(t=2)
    producer = SteppedProducer(on)
    waiting = producer.send("t", b"?", partition=2)
    producer.settle()
    assert "there is no partition 2, the topic has 2" in str(waiting.exception())
    with pytest.raises(SendFailed, match="there is no partition 7"):
        producer.send("t", b"?", partition=7)


def test_a_record_for_an_unknown_topic_expires_on_time_behind_one_that_has_expired() -> None:
    """PROD-8: the first one's end is an event, the second one's is not."""
    on = cluster(t=1)
    on.deal(Fate.IGNORE, Api.METADATA)
    producer = SteppedProducer(on, delivery_timeout=2.0, request_timeout=30.0)
    first = producer.send("t", b"first", partition=0)
    producer.run_for(1.0)
    second = producer.send("t", b"second", partition=0)
    settled_at: list[float] = []
    second.add_done_callback(lambda ticket: settled_at.append(producer.clock.monotonic()))
    producer.step_until(second.done)
    assert settled_at == [pytest.approx(3.0)]
    assert isinstance(first.exception(), Expired)
    assert isinstance(second.exception(), Expired)


def test_a_record_that_never_left_expires_as_not_persisted() -> None:
    """PROD-8."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=3.0)
    on.kill(0)
    producer.run_for(0.5)
    started = producer.clock.monotonic()
    tickets = [producer.send("t", str(i), partition=0) for i in range(3)]
    settled: list[float] = []
    tickets[0].add_done_callback(lambda ticket: settled.append(producer.clock.monotonic()))
    producer.settle()
    assert settled == [pytest.approx(started + 3.0)]
    for ticket in tickets:
        assert expired(ticket) == "no"


@pytest.mark.parametrize("fate", [Fate.SWALLOW, Fate.IGNORE])
def test_a_record_whose_answer_does_not_come_fails_when_its_time_is_over(fate: Fate) -> None:
    """PROD-8: `delivery_timeout` is a promise. The next batch, sent or not, fails at its own deadline."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=30.0)
    on.deal(fate, Api.PRODUCE)
    started = producer.clock.monotonic()
    settled: list[float] = []
    tickets = []
    for number in range(8):  # more than may be in flight
        ticket = producer.send_alone("t", b"%d" % number, partition=0)
        ticket.add_done_callback(lambda _: settled.append(producer.clock.monotonic()))
        tickets.append(ticket)
        producer.run_for(0.1)
    producer.settle()
    for number, moment in enumerate(settled):
        # What could not go shares a batch, and the time of the oldest in it.
        assert moment - started == pytest.approx(2.0 + min(number, 5) * 0.1, abs=0.01)
    assert [expired(ticket) for ticket in tickets] == ["unknown"] * 8  # the last ones went when the first were given up
    on.deal(Fate.ANSWER)
    producer.run_for(31)  # the silent connection is given up, and the next epoch goes on over a new one
    after = producer.send("t", b"after", partition=0)
    producer.settle()
    assert after.result().offset == len(values(on)) - 1
    assert len(set(values(on))) == len(values(on))


def test_a_batch_that_could_not_be_answered_in_time_is_not_sent() -> None:
    """PROD-8: it would go when the ones before it are given up, a moment before its own time is over."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=30.0)
    on.deal(Fate.IGNORE, Api.PRODUCE)
    sent = []
    for number in range(5):  # as many as may be in flight
        sent.append(producer.send_alone("t", b"%d" % number, partition=0))
        producer.clock.advance(0.005)
    left = producer.send_alone("t", b"left", partition=0)
    on.seen.clear()
    producer.settle()
    assert [expired(ticket) for ticket in sent] == ["unknown"] * 5
    assert expired(left) == "no"
    assert on.requests(Api.PRODUCE) == []


def test_a_batch_that_is_about_to_expire_is_not_sent() -> None:
    """PROD-8: the oldest batch of a leader that hangs is given up. The next ones expire some milliseconds later: they
    stay here, and are truthfully not persisted."""
    on = cluster(t=1)
    producer = SteppedProducer(on, delivery_timeout=2.0, request_timeout=30.0)
    on.deal(Fate.IGNORE, Api.PRODUCE)
    tickets = []
    for number in range(4):
        tickets.append(producer.send_alone("t", b"%d" % number, partition=0))  # the first batch goes alone
        producer.run_for(0.005)
    producer.settle()
    assert [expired(ticket) for ticket in tickets] == ["unknown", "no", "no", "no"]
    assert len(on.requests(Api.PRODUCE)) == 1


def test_a_record_that_expires_without_a_producer_id_says_what_the_server_answered() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on, delivery_timeout=2.0)
    on.deal(ErrorAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE), Api.INIT_PRODUCER_ID)
    ticket = producer.send("t", b"never", partition=0)
    producer.settle()
    assert expired(ticket) == "no"
    assert "the server last answered COORDINATOR_NOT_AVAILABLE: it gives no producer id" in str(ticket.exception())


def test_an_answer_that_comes_after_its_record_has_failed_changes_nothing() -> None:
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0)
    on.next(Api.PRODUCE, DelayedAnswer(3.0))
    late = producer.send_alone("t", b"late", partition=0)
    producer.run_for(2.5)
    assert expired(late) == "unknown"
    after = producer.send("t", b"after", partition=0)
    producer.settle()
    assert after.result().offset == 2
    assert values(on) == ["first", "late", "after"]
    assert expired(late) == "unknown"


def test_a_batch_without_a_key_expires_on_time_behind_a_younger_one() -> None:
    """It is older than the batches of the partition that it was given to."""
    on = cluster(t=2)
    producer = proven(on, delivery_timeout=2.0, linger=0.5)
    started = producer.clock.monotonic()
    settled: list[float] = []
    ticket = producer.send("t", b"old")
    ticket.add_done_callback(lambda _: settled.append(producer.clock.monotonic()))
    producer.run_for(0.3)
    on.deal(Fate.IGNORE, Api.PRODUCE)
    producer.sender.queues.flushing += 1
    for partition in (0, 1):
        producer.send("t", b"young", partition=partition)
    producer.sender.run_once(0.0)
    producer.sender.queues.flushing -= 1
    producer.settle()
    assert settled == [pytest.approx(started + 2.0, abs=0.01)]


def test_a_record_in_doubt_is_looked_for_in_the_log_before_it_expires() -> None:
    """PROD-8: it was written, every answer was lost, and the ticket still says that it is persisted."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=1.0)
    on.deal(Fate.CUT, Api.PRODUCE)
    ticket = producer.send("t", b"there", partition=0)
    producer.settle()
    assert ticket.result().offset == 1
    assert len(on.requests(Api.FETCH)) > 0


def test_a_record_in_doubt_but_not_in_the_log_expires_as_not_persisted() -> None:
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=1.0)
    on.deal(Fate.LOSE, Api.PRODUCE)
    lost = producer.send("t", b"lost", partition=0)
    producer.settle()
    assert expired(lost) == "no"
    on.deal(Fate.ANSWER)
    after = producer.send("t", b"after", partition=0)
    producer.settle()
    assert after.result().offset == 1
    assert values(on) == ["first", "after"]
    assert check_batch(on.logs["t"][0].batches[-1]).epoch == 1


def test_doubt_that_nobody_can_end_is_said_to_be_unknown() -> None:
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=1.0)
    on.deal(Fate.LOSE, Api.PRODUCE, Api.FETCH)
    ticket = producer.send("t", b"?", partition=0)
    producer.settle()
    assert expired(ticket) == "unknown"


def test_what_only_the_leader_has_is_in_doubt_until_it_is_replicated() -> None:
    """Above the high watermark it cannot be read, and yet it may stay: not found does not mean `no`."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=1.0)
    on.deal(Fate.CUT, Api.PRODUCE)
    on.logs["t"][0].replicated_to = 1
    ticket = producer.send("t", b"perhaps", partition=0)
    producer.settle()
    assert expired(ticket) == "unknown"


def test_what_a_server_that_stands_still_has_not_read_yet_may_still_arrive() -> None:
    """It is not in the log now, but its bytes are in the server's socket, and may still be read."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=1.0)
    on.deal(Fate.IGNORE, Api.PRODUCE)
    ticket = producer.send("t", b"perhaps", partition=0)
    producer.settle()
    assert expired(ticket) == "unknown"
    on.deal(Fate.ANSWER)
    after = producer.send("t", b"after", partition=0)
    producer.settle()
    assert after.result().offset == 1
    assert check_batch(on.logs["t"][0].batches[-1]).epoch == 1  # which shuts it out from here on


def test_what_may_still_arrive_is_not_sent_again_under_the_next_epoch() -> None:
    """IDEM-6: the server may append it before it learns of the new epoch, and so store it twice."""
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=5.0, request_timeout=1.0)
    on.deal(Fate.IGNORE, Api.PRODUCE)
    first = producer.send_alone("t", b"first", partition=0)
    producer.run_for(0.9)
    second = producer.send_alone("t", b"second", partition=0)
    producer.run_for(3.9)  # the last attempt is given up by now, and the next one would come after the deadline
    on.deal(Fate.ANSWER)
    after = producer.send("t", b"after", partition=0)
    producer.settle()
    assert expired(first) == "unknown"
    error = second.exception(0)
    assert isinstance(error, SendFailed)
    assert error.persisted == "unknown"
    assert after.result().offset == 1


def test_doubt_ends_once_what_the_leader_has_is_replicated() -> None:
    on = cluster(t=1)
    producer = proven(on, delivery_timeout=2.0, request_timeout=1.0)
    on.deal(Fate.CUT, Api.PRODUCE)
    log = on.logs["t"][0]
    log.replicated_to = 1
    ticket = producer.send("t", b"there", partition=0)
    producer.run_for(1.6)  # the last quarter of its time, in which it is looked for
    assert len(on.requests(Api.FETCH)) > 0
    assert not ticket.done()
    log.replicated_to = None
    producer.settle()
    assert ticket.result().offset == 1


def test_a_server_that_lost_track_is_not_fatal() -> None:
    """OUT_OF_ORDER for the oldest batch: bump this partition's epoch and continue. Other clients fail for good."""
    on = cluster(t=2)
    producer = proven(on)
    producer.send("t", b"other", partition=1)
    producer.settle()
    producer.send("t", b"second", partition=0)
    producer.settle()
    on.logs["t"][0].lose_tail(1)
    ticket = producer.send("t", b"mine", partition=0)
    other = producer.send("t", b"still epoch 0", partition=1)
    producer.settle()
    assert ticket.result().offset == 1
    assert other.result().offset == 1
    assert [check_batch(batch).epoch for batch in on.logs["t"][0].batches] == [0, 1]
    assert [check_batch(batch).epoch for batch in on.logs["t"][1].batches] == [0, 0]


def test_many_new_epochs_are_one_line_in_the_log_per_half_minute(caplog: pytest.LogCaptureFixture) -> None:
    on = cluster(t=1)
    producer = proven(on)
    caplog.set_level(logging.INFO, "fencepost.producer")

    def bump(times: int) -> None:
        for _ in range(times):
            on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
            producer.send("t", b"v", partition=0)
            producer.settle()

    bump(50)
    on.clock.advance(31)
    bump(1)
    lines = [record.getMessage() for record in caplog.records if "continues with pid" in record.getMessage()]
    assert len(lines) == 2, lines
    assert lines[1].endswith("under epoch 51 (and 49 more such lines since the last one)")


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_fenced_is_final(code: ErrorCode) -> None:
    """IDEM-5."""
    on = cluster(t=1)
    producer = proven(on)
    on.next(Api.PRODUCE, ErrorAnswer(code))
    ticket = producer.send("t", b"late", partition=0)
    producer.settle()
    error = ticket.exception()
    assert isinstance(error, Fenced)
    assert error.persisted == "no"
    with pytest.raises(Fenced) as later:
        producer.send("t", b"later", partition=0)
    assert later.value.persisted == "no"  # it was never accepted


def test_a_batch_without_a_partition_that_was_split_twice_is_under_way_no_longer() -> None:
    on = cluster(t=2)
    producer = SteppedProducer(on)
    for value in b"abcd":
        producer.send("t", bytes([value]))
    too_large = ErrorAnswer(ErrorCode.MESSAGE_TOO_LARGE)
    on.next(Api.PRODUCE, too_large, Fate.ANSWER, too_large)  # the whole, its first half, its second half
    producer.settle()
    assert {*on.values("t", 0), *on.values("t", 1)} == {b"a", b"b", b"c", b"d"}
    (topic,) = producer.sender.queues._topics.values()
    assert topic.undesignated_unsettled == 0


def test_a_batch_that_the_server_finds_too_large_is_split_and_stays_in_order() -> None:
    on = cluster(t=1)
    producer = proven(on)
    on.logs["t"][0].max_batch_bytes = 400
    tickets = [producer.send("t", f"{i:050d}", partition=0) for i in range(40)]
    producer.settle()
    assert values(on) == ["first", *(f"{i:050d}" for i in range(40))]
    assert [ticket.result().offset for ticket in tickets] == list(range(1, 41))


def test_one_record_that_the_server_finds_too_large_fails_alone() -> None:
    on = cluster(t=1)
    producer = proven(on)
    on.logs["t"][0].max_batch_bytes = 400
    small, large, after = (producer.send("t", value, partition=0) for value in (b"small", b"x" * 500, b"after"))
    producer.settle()
    assert values(on) == ["first", "small", "after"]
    error = large.exception()
    assert isinstance(error, SendFailed)
    assert (error.code, error.persisted, error.count) == (ErrorCode.MESSAGE_TOO_LARGE, "no", 1)
    assert small.result().offset == 1
    assert after.result().offset == 2


def test_a_record_larger_than_any_request_is_refused_at_the_call() -> None:
    producer = SteppedProducer(cluster(t=1), max_request_size=1000, batch_size=1000)
    with pytest.raises(RecordTooLarge, match="max_request_size=1000"):
        producer.send("t", b"x" * 1000)


def test_a_throttled_connection_is_left_alone_for_as_long_as_the_server_asks() -> None:
    on = cluster(t=1)
    producer = proven(on)
    connection = producer.sender.brokers.of_node(0)
    assert connection is not None
    connection.throttled_until = producer.clock.monotonic() + 2.0
    started = producer.clock.monotonic()
    ticket = producer.send("t", b"later", partition=0)
    producer.settle()
    assert ticket.result().offset == 1
    assert producer.clock.monotonic() - started >= 2.0


def test_one_request_carries_a_batch_of_each_partition_that_its_broker_leads() -> None:
    """PROD-9."""
    on = cluster(nodes=2, t=4)
    producer = SteppedProducer(on)
    for partition in range(4):
        producer.send("t", b"first", partition=partition)
    producer.settle()
    on.seen.clear()
    for partition in range(4):
        producer.send("t", b"second", partition=partition)
    producer.settle()
    carried = {
        request.node: [part.index for topic in request.message.topics for part in topic.partitions]
        for request in on.requests(Api.PRODUCE)
    }
    assert {node: sorted(parts) for node, parts in carried.items()} == {0: [0, 2], 1: [1, 3]}


def test_records_that_come_while_a_batch_is_under_way_are_gathered_into_one() -> None:
    """PROD-9."""
    on = cluster(t=1)
    on.latency = 0.004
    producer = proven(on)
    on.seen.clear()
    producer.send("t", b"0", partition=0)
    producer.sender.run_once(0.0)
    for i in range(1, 100):
        producer.send("t", str(i), partition=0)
        producer.sender.run_once(0.0)
    producer.settle()
    assert len(on.requests(Api.PRODUCE)) == 2
    assert len(values(on)) == 101


def test_linger_holds_a_batch_back_until_it_is_over_or_somebody_flushes() -> None:
    """PROD-9."""
    on = cluster(t=1)
    producer = proven(on, linger=1.0)
    ticket = producer.send("t", b"waits", partition=0)
    started = producer.clock.monotonic()
    producer.step_until(ticket.done)
    assert 1.0 <= producer.clock.monotonic() - started < 1.1
    hurried = producer.send("t", b"hurries", partition=0)
    started = producer.clock.monotonic()
    producer.settle()
    assert hurried.done()
    assert producer.clock.monotonic() - started < 0.1


def test_without_idempotence_one_batch_per_partition_is_in_flight_without_a_pid() -> None:
    """PROD-4, IDEM-1."""
    on = cluster(t=1)
    producer = proven(on, idempotent=False)
    on.seen.clear()
    three(producer)
    assert len(on.requests(Api.PRODUCE)) == 1
    producer.settle()
    assert values(on)[0:2] == ["first", "M1"]
    assert on.requests(Api.INIT_PRODUCER_ID) == []
    assert check_batch(on.logs["t"][0].batches[0]).pid == -1


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed_when_they_are_drained(compression: str) -> None:
    """PROD-2, PROD-9."""
    on = cluster(t=1)
    producer = SteppedProducer(on, compression=compression)  # type: ignore[arg-type]
    for i in range(100):
        producer.send("t", f"{i:04d}" * 20, partition=0)
    producer.settle()
    assert values(on) == [f"{i:04d}" * 20 for i in range(100)]
    assert (len(on.logs["t"][0].batches[0]) < 4000) == (compression != "none")


def test_serializers_run_on_the_send_thread_and_a_failing_one_fails_its_record_only() -> None:
    """PROD-2."""
    on = cluster(t=2)
    producer = SteppedProducer(on, key_serializer=str, value_serializer=lambda value: str(100 // value))
    tickets = [producer.send("t", value, key=7) for value in (1, 0, 4)]
    assert on.seen == []
    producer.settle()
    assert values(on, "t", partition_for_key(b"7", 2)) == ["100", "25"]
    assert "ZeroDivisionError" in str(tickets[1].exception())
    assert tickets[2].result().offset == 1


def test_a_partitioner_of_the_users_chooses() -> None:
    on = cluster(t=3)
    producer = SteppedProducer(on, partitioner=lambda key, count: len(key or b"") % count)
    for key in (b"", b"a", b"bb", None):
        producer.send("t", b"v", key=key)
    producer.settle()
    assert [len(values(on, "t", partition)) for partition in range(3)] == [2, 1, 1]


def test_a_topic_that_grows_gets_records_on_its_new_partitions() -> None:
    on = cluster(t=1)
    producer = proven(on, metadata_max_age=60.0)
    more = cluster(t=2).logs["t"][1]
    on.logs["t"].append(more)
    producer.run_for(61.0)
    ticket = producer.send("t", b"v", partition=1)
    producer.settle()
    assert ticket.result().partition == 1


def test_without_acknowledgements_a_record_is_settled_when_it_has_left() -> None:
    """acks=0 of other clients: no offset, no answer, and order all the same."""
    on = cluster(t=1)
    producer = SteppedProducer(on, idempotent=False, acks="none")
    tickets = [producer.send("t", f"{number}", partition=0) for number in range(3)]
    producer.settle()
    assert [ticket.result().offset for ticket in tickets] == [-1, -1, -1]
    assert values(on) == ["0", "1", "2"]
    assert [request.message.acks for request in on.requests(Api.PRODUCE)] == [0]


def test_without_acknowledgements_what_has_not_left_yet_is_waited_for() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on, idempotent=False, acks="none", delivery_timeout=2.0)
    on.kill(0)
    ticket = producer.send("t", b"never", partition=0)
    producer.settle()
    assert expired(ticket) == "no"


def test_without_acknowledgements_a_lost_connection_costs_only_in_flight_records() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on, idempotent=False, acks="none")
    producer.send("t", b"first", partition=0)
    producer.settle()
    on.next(Api.PRODUCE, Fate.LOSE)
    lost = producer.send("t", b"lost", partition=0)
    producer.settle()
    assert lost.result().offset == -1  # nobody said that it was not there
    producer.run_for(1.0)
    producer.send("t", b"after", partition=0)
    producer.settle()
    assert values(on) == ["first", "after"]
