"""The caller's side: memory shared fairly, blocking or raising, flushing, tickets and callbacks."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from fencepost.client.produce.partition_queue import PartitionQueue, TopicQueues
from fencepost.client.produce.queues import RECORDS_BEFORE_GIVING_WAY
from fencepost.client.produce.table import BulkTicket, send_table
from fencepost.client.produce.ticket import Ticket, Unseen
from fencepost.errors import (
    BufferFull,
    ConfigError,
    ErrorCode,
    Expired,
    FencepostError,
    RecordTooLarge,
    SendFailed,
    TimedOut,
)
from tests.support.scripted import Api, ErrorAnswer, Fate
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

NONE_FAILED = Unseen(0, (), "no")


def fill(producer: SteppedProducer, topic: str) -> int:
    return fill_partition(producer, topic)


def test_a_topic_may_hold_as_much_as_is_still_free_so_others_always_find_room() -> None:
    """PROD-6."""
    producer = SteppedProducer(cluster(a=1, b=1, c=1), buffer_memory=100_000, block_timeout=0)
    first, second, third = fill(producer, "a"), fill(producer, "b"), fill(producer, "c")
    assert 45 <= first <= 50
    assert 22 <= second <= 25
    assert 10 <= third <= 13


def fill_partition(producer: SteppedProducer, topic: str, **where: Any) -> int:
    for sent in range(10_000):
        try:
            producer.send(topic, b"x" * 1000, **where)
        except BufferFull:
            return sent
    raise AssertionError("never full")


def test_a_partition_that_is_full_leaves_room_for_the_others_of_its_topic() -> None:
    """PROD-6, inside a topic's share. The error names the full partition."""
    producer = SteppedProducer(cluster(t=3), buffer_memory=100_000, block_timeout=0)
    producer.send("t", b"first", partition=0)
    producer.settle()
    assert 22 <= fill_partition(producer, "t", partition=0) <= 25
    with pytest.raises(BufferFull, match="for partition 0"):
        producer.send("t", b"x" * 1000, partition=0)
    assert 10 <= fill_partition(producer, "t", partition=1) <= 13
    assert 5 <= fill_partition(producer, "t") <= 7  # without a partition: the undesignated queue is one of them
    producer.send("t", b"x" * 1000, partition=2)
    producer.settle()
    assert [queue.held for queue in producer.sender.queues.everything()] == [0, 0, 0, 0]
    assert producer.sender.queues.held == 0


def test_a_partition_without_neighbours_may_hold_its_topics_whole_share() -> None:
    producer = SteppedProducer(cluster(t=1), buffer_memory=100_000, block_timeout=0)
    producer.send("t", b"first")
    producer.settle()
    assert 45 <= fill_partition(producer, "t") <= 50


def test_a_partition_that_holds_nothing_takes_a_record_that_fits_its_topic() -> None:
    """However much other partitions hold: the largest record does not depend on the number of partitions."""
    producer = SteppedProducer(cluster(t=2), buffer_memory=100_000, block_timeout=0, max_request_size=1 << 20)
    producer.send("t", b"first", partition=0)
    producer.settle()
    producer.send("t", b"x" * 45_000, partition=0)
    producer.settle()
    fill_partition(producer, "t", partition=0)
    producer.send("t", b"x" * 20_000, partition=1)
    producer.settle()
    assert producer.sender.queues.held == 0


def test_records_to_be_serialized_leave_room_beside_a_full_partition_that_they_name() -> None:
    on = cluster(t=2)
    producer = SteppedProducer(on, buffer_memory=100_000, block_timeout=0, value_serializer=lambda size: b"x" * size)
    producer.send("t", 10, partition=0)
    producer.settle()
    on.latency = 1000.0

    def flood() -> None:
        for _ in range(100):
            producer.send("t", 1000, partition=0)
            producer.sender.run_once(0.0)

    with pytest.raises(BufferFull, match="for partition 0"):
        flood()
    producer.send("t", 1000, partition=1)


def test_a_caller_blocked_by_one_partition_does_not_hold_up_another_ones() -> None:
    on = cluster(t=2)
    producer = SteppedProducer(on, buffer_memory=100_000)
    producer.send("t", b"first", partition=0)
    producer.settle()
    blocked = threading.Event()
    wake = producer.sender.queues._wake

    def wake_and_tell() -> None:
        if producer.sender.queues.in_a_hurry:
            blocked.set()
        wake()

    producer.sender.queues._wake = wake_and_tell

    def flood() -> None:
        for _ in range(30):
            producer.send("t", b"x" * 1000, partition=0)

    flooding = threading.Thread(target=flood)
    flooding.start()
    assert blocked.wait(10)
    ticket = producer.send("t", b"x" * 1000, partition=1)
    assert flooding.is_alive()
    producer.step_until(ticket.done)
    while flooding.is_alive():
        producer.sender.run_once()
        flooding.join(0.001)  # it needs its turn, too, on a busy machine
    producer.settle()
    flooding.join()
    assert len(on.values("t", 0)) == 31


def test_memory_is_free_again_when_records_are_settled() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on, buffer_memory=100_000, block_timeout=0)
    sent = fill(producer, "t")
    producer.settle()
    assert producer.sender.queues.held == 0
    assert abs(fill(producer, "t") - sent) <= 1  # an estimate while the partitions are not known, exact afterwards


def test_send_blocks_until_there_is_room() -> None:
    """PROD-1."""
    on = cluster(t=1)
    producer = SteppedProducer(on, buffer_memory=20_000)
    for _ in range(9):
        producer.send("t", b"x" * 1000)
    blocked = threading.Event()
    tickets: list[Ticket] = []

    def caller() -> None:
        blocked.set()
        tickets.extend(producer.send("t", b"y" * 1000) for _ in range(20))

    thread = threading.Thread(target=caller)
    thread.start()
    blocked.wait()
    while thread.is_alive():
        producer.sender.run_once(0.01)
    producer.settle()
    assert len(on.values("t", 0)) == 29
    assert all(ticket.exception() is None for ticket in tickets)


def test_a_caller_gives_way_once_for_every_batch_it_fills_and_not_under_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PROD-3: a caller in a tight loop would otherwise keep the GIL from the send thread."""
    producer = SteppedProducer(cluster(t=1), batch_size=4_000)
    producer.send("t", b"x")
    producer.settle()  # the partitions are known from here on
    queues = producer.sender.queues
    free: list[bool] = []

    def given_way() -> None:
        free.append(queues.lock.acquire(blocking=False))
        queues.lock.release()

    monkeypatch.setattr("fencepost.client.produce.queues.give_way", given_way)
    for _ in range(3):
        producer.send("t", b"y" * 1000)
    assert free == []
    for _ in range(6):
        producer.send("t", b"y" * 1000)
    producer.settle()
    assert free == [True, True]


def test_a_caller_of_a_new_topic_gives_way_so_that_its_partitions_become_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PROD-3: the send thread has to connect and to ask for the metadata, with the GIL at every step."""
    producer = SteppedProducer(cluster(t=1))
    queues = producer.sender.queues
    free: list[bool] = []

    def given_way() -> None:
        free.append(queues.lock.acquire(blocking=False))
        queues.lock.release()

    monkeypatch.setattr("fencepost.client.produce.queues.give_way", given_way)
    for _ in range(3 * RECORDS_BEFORE_GIVING_WAY):
        producer.send("t", b"y", partition=0)
    assert free == [True, True, True]
    producer.settle()


def test_a_caller_that_blocks_too_long_is_told_what_is_full() -> None:
    producer = SteppedProducer(cluster(t=1), buffer_memory=3000, block_timeout=0.0)
    producer.send("t", b"x" * 1000)
    with pytest.raises(BufferFull, match="t holds"):
        producer.send("t", b"x" * 1000)


def test_a_record_that_never_fits_the_memory_is_refused_at_once() -> None:
    producer = SteppedProducer(cluster(t=1), buffer_memory=4000)
    with pytest.raises(RecordTooLarge, match="buffer_memory"):
        producer.send("t", b"x" * 3000)


def test_no_later_record_enters_a_partition_while_those_that_waited_are_being_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PROD-5. The caller's thread sends between any two of the batches that the send thread moves."""
    on = cluster(t=1)
    producer = SteppedProducer(on, batch_size=120)
    for i in range(12):
        producer.send("t", b"%02d" % i, key=b"k")
    queues = producer.sender.queues
    place, delayed, moved = queues._place, [], 0

    def send_meanwhile(*arguments: Any, **options: Any) -> None:
        nonlocal moved
        place(*arguments, **options)
        moved += 1
        queues.intake.send("t", b"later")

    monkeypatch.setattr(queues, "_place", send_meanwhile)
    monkeypatch.setattr(queues.intake, "slowly", lambda *record: delayed.append(record))  # waits for the lock, really
    producer.settle()
    values = on.values("t", 0)
    assert values[:12] == [b"%02d" % i for i in range(12)]
    assert set(values[12:]) <= {b"later"}
    assert moved > 2
    assert delayed
    assert len(delayed) + len(values) == 12 + moved


def test_records_without_a_key_are_encoded_before_the_partitions_are_known() -> None:
    """PROD-5: they go into the topic's undesignated batch at once, and get their partition with it."""
    on = cluster(t=3)
    producer = SteppedProducer(on, linger=60.0)
    tickets = [producer.send("t", b"%d" % number) for number in range(100)]
    (topic,) = producer.sender.queues._topics.values()
    assert not topic.waiting
    assert {ticket.settlement for ticket in tickets} == {topic.undesignated_queue.open}
    producer.run_for(1.0)
    assert topic.partition_count == 3
    assert {ticket.settlement for ticket in tickets} == {topic.undesignated_queue.open}, "linger is kept"
    producer.settle()
    assert sorted(len(on.values("t", partition)) for partition in range(3)) == [0, 0, 100]
    assert [ticket.result().offset for ticket in tickets] == list(range(100))


@pytest.mark.parametrize("batch_size", [200, 1 << 20])
def test_records_with_and_without_a_key_keep_their_order_in_a_single_partition(batch_size: int) -> None:
    """PROD-4, PROD-5."""
    on = cluster(t=1)
    producer = SteppedProducer(on, batch_size=batch_size)
    keys = [None, None, None, b"k", None, b"k", None]
    for number, key in enumerate(keys * 3):
        producer.send("t", b"%02d" % number, key=key)
    producer.settle()
    assert on.values("t", 0) == [b"%02d" % number for number in range(21)]
    assert producer.sender.queues.held == 0


def test_what_was_encoded_for_a_topic_that_does_not_exist_fails() -> None:
    producer = SteppedProducer(cluster(), unknown_topic_timeout=2.0, batch_size=200)
    tickets = [producer.send("no", b"%d" % number) for number in range(50)]
    producer.settle()
    errors = [ticket.exception(0) for ticket in tickets]
    assert {type(error) for error in errors} == {SendFailed}
    assert {getattr(error, "code", None) for error in errors} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert {getattr(error, "persisted", None) for error in errors} == {"no"}
    assert producer.sender.queues.held == 0
    assert not producer.sender.queues.topics_to_place()


def test_what_was_encoded_expires_while_nobody_answers_about_the_topic() -> None:
    """PROD-8."""
    on = cluster(t=3)
    on.kill(0)
    producer = SteppedProducer(on, delivery_timeout=3.0)
    ticket = producer.send("t", b"v")
    producer.settle()
    error = ticket.exception(0)
    assert isinstance(error, Expired)
    assert "no answer about the topic within 3 s" in str(error)
    assert error.persisted == "no"
    producer.run_for(1.0)
    assert not producer.sender.queues.topics_to_place()


@pytest.mark.parametrize("options", [{}, {"value_serializer": bytes}], ids=["encoded", "waits"])
def test_an_interrupted_send_to_a_new_topic_leaves_nothing_to_wait_for(options: dict[str, Any]) -> None:
    """A signal handler raises in `send`, after the topic has a batch or placeholder and before that has the record."""
    producer = SteppedProducer(cluster(t=1), **options)
    queues = producer.sender.queues
    to_be_placed = queues.to_be_placed

    def interrupted(topic: TopicQueues) -> None:
        to_be_placed(topic)
        raise KeyboardInterrupt

    queues.to_be_placed = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        producer.send("t", b"first", partition=0)
    queues.to_be_placed = to_be_placed  # type: ignore[method-assign]
    producer.settle()
    ticket = producer.send("t", b"second", partition=0)
    producer.settle()
    assert ticket.result(0).offset == 0


def test_a_flush_that_wakes_late_sees_that_moved_records_are_settled_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions became known and the server answered before the caller's thread had its turn again."""
    producer = SteppedProducer(cluster(t=1))
    producer.send("t", b"v")
    queues = producer.sender.queues
    waits = 0

    def wait(timeout: float | None = None) -> bool:
        nonlocal waits
        waits += 1
        assert waits == 1, "waits for what has happened already"
        queues.lock.release()
        producer.step_until(lambda: queues.is_empty)
        queues.lock.acquire()
        return True

    monkeypatch.setattr(queues.something_settled, "wait", wait)
    assert queues.wait_until_settled(None)
    assert waits == 1


@pytest.mark.parametrize(("key", "value"), [(1, b"v"), (b"k", 2.0), (b"k", ["v"])])
def test_what_is_no_bytes_is_refused_with_its_name(key: object, value: object) -> None:
    producer = SteppedProducer(cluster(t=1))
    with pytest.raises(TypeError, match="must be bytes, str or None, not"):
        producer.send("t", value, key=key)
    assert producer.sender.queues.is_empty


def test_a_record_that_cannot_be_encoded_leaves_nothing_behind() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    producer.send("t", b"first")
    producer.settle()
    with pytest.raises(UnicodeEncodeError):
        producer.send("t", "\ud800")
    assert producer.sender.queues.is_empty
    ticket = producer.send("t", b"second")
    producer.settle()
    assert ticket.result().offset == 1


def test_a_ticket_can_be_waited_for_only_so_long() -> None:
    producer = SteppedProducer(cluster(t=1))
    with pytest.raises(TimedOut):
        producer.send("t", b"v").result(timeout=0.001)


def test_callbacks_are_called_once_when_settled_and_at_once_if_it_is() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    called: list[int] = []
    early = producer.send("t", b"v")
    early.add_done_callback(lambda ticket: called.append(ticket.result().offset))
    assert called == []
    producer.settle()
    assert called == [0]
    early.add_done_callback(lambda ticket: called.append(-ticket.result().offset))
    assert called == [0, 0]


def test_a_callback_that_sends_or_raises_does_no_harm() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)

    def callback(ticket: Ticket) -> None:
        producer.send("t", b"second")
        raise RuntimeError("on purpose")

    producer.send("t", b"first").add_done_callback(callback)
    producer.send("nowhere", b"lost").add_done_callback(callback)
    producer.settle()
    assert on.values("t", 0) == [b"first", b"second", b"second"]


async def test_a_ticket_can_be_awaited_before_and_after_it_is_settled() -> None:
    producer = SteppedProducer(cluster(t=1))
    tickets = [producer.send("t", b"v") for _ in range(3)]
    waiting = [asyncio.ensure_future(_await(ticket)) for ticket in tickets]
    await asyncio.sleep(0)
    producer.settle()
    assert [await future for future in waiting] + [await _await(tickets[0])] == [0, 1, 2, 0]


async def _await(ticket: Ticket) -> int:
    return (await ticket).offset


async def test_awaiting_a_failed_ticket_raises_its_error() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.INVALID_RECORD))
    ticket = producer.send("t", b"v")
    waiting = asyncio.ensure_future(_await(ticket))
    await asyncio.sleep(0)
    producer.settle()
    with pytest.raises(SendFailed, match="INVALID_RECORD"):
        await waiting


def test_table_rows_accepted_before_the_memory_was_full_have_their_ticket() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on, buffer_memory=20_000, batch_size=2_000, block_timeout=0)
    producer.send("t", b"first")
    producer.settle()
    table = pa.table({"value": [b"x" * 1000] * 40})
    with pytest.raises(BufferFull) as caught:
        send_table(producer.sender.queues, producer.options, "t", table, 0)
    accepted = caught.value.accepted
    producer.settle()
    assert len(accepted) == len(on.values("t", 0)) - 1 > 0
    assert accepted.exception(0) is None


class WholeNumber:
    """An integer that is no int, as numpy has them."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"topic": 5}, TypeError, "topic .* not int"),
        ({"topic": b"t"}, TypeError, "topic .* not bytes"),
        ({"topic": None}, TypeError, "topic .* not NoneType"),
        ({"topic": ""}, ValueError, "topic name must not be empty"),
        ({"topic": "a\ud800"}, ValueError, "may only have ASCII letters"),
        ({"partition": "0"}, TypeError, "partition .* not str"),
        ({"partition": 0.0}, TypeError, "partition .* not float"),
        ({"headers": {"a": b"1"}}, TypeError, r"headers .*\(name, value\), not dict"),
        ({"headers": 5}, TypeError, "headers .* not int"),
        ({"timestamp": datetime(2026, 1, 1, tzinfo=UTC)}, TypeError, "timestamp .* not datetime"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named_at_the_call_and_ends_no_thread(
    arguments: dict[str, Any], error: type[Exception], said: str, is_known: bool
) -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    if is_known:
        producer.send("t", b"v")
        producer.step_until(lambda: bool(producer.sender.queues.partition_count("t")))
        producer.settle()
        producer.send("t", b"v")  # whose batch is open
    with pytest.raises(error, match=said):
        producer.send(**{"topic": "t", "value": b"v", **arguments})
    good = producer.send("t", b"v", partition=WholeNumber(), timestamp=WholeNumber())
    producer.settle()
    assert good.result(0).timestamp == 0


@pytest.mark.parametrize("topic", ["t", "nowhere"])
async def test_a_loop_that_was_closed_while_it_awaited_a_ticket_does_no_harm(topic: str) -> None:
    on = cluster(t=1)
    on.creates_topics = False
    producer = SteppedProducer(on, unknown_topic_timeout=1.0)
    ticket = producer.send(topic, b"v", partition=0)
    waiting = asyncio.ensure_future(_await(ticket))
    await asyncio.sleep(0)
    waiting.cancel()
    producer.settle()
    assert (ticket.exception(0) is None) == (topic == "t")


def test_failures_nobody_looked_at_are_counted_and_those_somebody_saw_are_not() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.INVALID_RECORD))
    tickets = [producer.send("t", b"v") for _ in range(10)]
    producer.settle()
    for ticket in tickets[:4]:
        assert ticket.exception() is not None
    count, causes, persisted = producer.sender.settling.failures.take()
    assert (count, persisted) == (6, "no")
    assert [type(cause) for cause in causes] == [SendFailed]
    assert producer.sender.settling.failures.take() == NONE_FAILED


def test_what_is_known_of_the_failures_is_known_of_all_not_only_of_the_kept_causes() -> None:
    """PROD-8."""
    on = cluster(t=1)
    producer = SteppedProducer(on, delivery_timeout=2.0)
    on.next(Api.PRODUCE, *[ErrorAnswer(ErrorCode.INVALID_RECORD)] * 10, Fate.IGNORE)
    for _ in range(11):
        producer.send_alone("t", b"v", partition=0)
        producer.settle()
    count, causes, persisted = producer.sender.settling.failures.take()
    assert count == 11
    assert {cause.persisted for cause in causes if isinstance(cause, SendFailed)} == {"no"}
    assert persisted == "unknown"
    assert producer.sender.settling.failures.take() == NONE_FAILED


def test_the_hook_hears_of_every_batch_that_failed_and_then_flush_need_not() -> None:
    heard: list[SendFailed] = []
    on = cluster(t=1)
    producer = SteppedProducer(on, on_error=heard.append, unknown_topic_timeout=1.0)
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.INVALID_RECORD))
    for _ in range(10):
        producer.send("t", b"v")
    producer.send("nowhere", b"v")
    producer.settle()
    assert sorted((error.topic, error.count) for error in heard) == [("nowhere", 1), ("t", 10)]
    assert producer.sender.settling.failures.take() == NONE_FAILED


def test_ten_thousand_idle_queues_hold_no_batches() -> None:
    """PROD-11."""
    on = cluster(t=10_000)
    producer = SteppedProducer(on)
    for partition in range(10_000):
        producer.send("t", b"v", partition=partition)
    producer.settle()
    producer.sender.run_once(0.0)
    assert producer.sender.queues.active() == []
    assert producer.sender.queues.held == 0
    queues = list(producer.sender.queues.everything())
    assert len(queues) == 10_001
    assert not any(queue.open or queue.sealed for queue in queues)
    # The queue, its flight, and nothing else of its own: no list, no dict.
    own = queues[-1]
    assert own.flight is not None
    parts = [part for of in (own, own.flight) for part in gc.get_referents(of) if isinstance(part, list | dict)]
    assert parts == []
    assert sys.getsizeof(own) + sys.getsizeof(own.flight) < 300


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "brotli"},
        {"batch_size": 0},
        {"delivery_timeout": -1},
        {"acks": "leader"},
        {"linger": -0.1},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_its_name(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        SteppedProducer(cluster(), **options)  # type: ignore[arg-type]
    assert next(iter(options)) in str(raised.value)
    assert isinstance(raised.value, FencepostError)


def send_rows(producer: SteppedProducer, topic: str, values: list[bytes], **columns: list[Any]) -> BulkTicket:
    table = pa.table({"value": values, **columns})
    return send_table(producer.sender.queues, producer.options, topic, table, producer.clock.now_ms())


def test_a_table_for_a_new_topic_waits_in_order_with_records_and_blocks_nobody() -> None:
    """PROD-1, PROD-5: all three calls return before the send thread takes a turn."""
    on = cluster(t=2)
    producer = SteppedProducer(on)
    before = producer.send("t", b"before", key=b"k", partition=1)
    rows = send_rows(producer, "t", [b"1", b"2", b"3"], partition=[1, 0, 1])
    after = producer.send("t", b"after", partition=1)
    assert len(rows) == 3
    assert not rows.done()
    producer.settle()
    assert on.values("t", 1) == [b"before", b"1", b"3", b"after"]
    assert on.values("t", 0) == [b"2"]
    assert [(run.partition, run.offset, run.records) for run in rows.result(0)] == [(0, 0, 1), (1, 1, 2)]
    assert (before.result(0).offset, after.result(0).offset) == (0, 3)
    assert rows.done()
    assert producer.sender.queues.held == 0


def test_a_table_that_waited_says_on_its_ticket_that_a_partition_does_not_exist() -> None:
    on = cluster(t=2)
    producer = SteppedProducer(on)
    rows = send_rows(producer, "t", [b"1", b"2"], partition=[0, 7])
    fine = producer.send("t", b"fine", partition=0)
    producer.settle()
    with pytest.raises(SendFailed, match="there is no partition 7"):
        rows.result(0)
    assert rows.rows(0).persisted == (range(1),)
    assert fine.result(0).offset == 1
    assert producer.sender.settling.failures.take() == NONE_FAILED  # somebody has looked
    assert producer.sender.queues.held == 0


def test_a_table_for_a_topic_that_stays_unknown_fails_in_time_with_all_its_records() -> None:
    on = cluster()
    on.creates_topics = False
    producer = SteppedProducer(on, delivery_timeout=2.0)
    rows = send_rows(producer, "nowhere", [b"1", b"2", b"3"])
    started = producer.clock.monotonic()
    producer.settle()
    assert producer.clock.monotonic() - started < 2.2  # the turn that failed them polls once more
    assert isinstance(rows.exception(0), SendFailed)
    assert producer.sender.queues.held == 0
    again = send_rows(producer, "nowhere", [b"1", b"2", b"3"])
    producer.settle()
    assert producer.sender.settling.failures.take()[0] == 3  # nobody has looked
    assert again.done()


def test_a_table_that_does_not_fit_for_a_new_topic_has_a_ticket_for_what_fitted() -> None:
    producer = SteppedProducer(cluster(t=1), buffer_memory=100_000, block_timeout=0)
    with pytest.raises(BufferFull) as refused:
        send_rows(producer, "t", [b"x" * 1000] * 100)
    accepted = refused.value.accepted
    assert isinstance(accepted, BulkTicket)
    assert 0 < len(accepted) < 100
    producer.settle()
    assert sum(run.records for run in accepted.result(0)) == len(accepted)
    assert producer.sender.queues.held == 0


async def test_a_table_for_a_new_topic_can_be_awaited() -> None:
    producer = SteppedProducer(cluster(t=1))
    rows = send_rows(producer, "t", [b"1", b"2"])
    stepping = asyncio.get_running_loop().run_in_executor(None, producer.settle)
    runs = await rows
    await stepping
    assert sum(run.records for run in runs) == 2


def test_a_batch_whose_closing_is_interrupted_is_in_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler raises in the `send` that has found the batch full. Its records were accepted (IDEM-1)."""
    producer = SteppedProducer(cluster(t=1), batch_size=1000, linger=1.0)
    producer.send("t", b"first", partition=0)
    producer.settle()
    kept: list[Ticket] = []
    end = PartitionQueue.end

    def end_and_raise(queue: PartitionQueue) -> None:
        end(queue)
        raise KeyboardInterrupt

    def fill_a_batch() -> None:
        while True:
            ticket = producer.send("t", b"v" * 100, partition=0)
            kept.append(ticket)

    monkeypatch.setattr(PartitionQueue, "end", end_and_raise)
    with pytest.raises(KeyboardInterrupt):
        fill_a_batch()
    monkeypatch.undo()
    last = producer.send("t", b"last", partition=0)
    producer.settle()
    assert producer.cluster.values("t", 0) == [b"first", *[b"v" * 100] * len(kept), b"last"]
    assert [ticket.result(0).offset for ticket in [*kept, last]] == list(range(1, len(kept) + 2))


class Interrupt(BaseException):
    """What a signal handler raises."""


def interrupted_at(call: int, action: Callable[[], object]) -> bool:
    """Raise where a signal handler could: when a function of the package is entered, or has returned from native code.
    Return False if the action was over before so many of these."""
    left = call

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and "fencepost" in frame.f_globals.get("__name__", ""):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(count)
    try:
        action()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


ROWS = pa.table({"value": [b"0", b"1", b"2", b"3"], "key": [b"k", None, b"l", None], "partition": [3, None, 0, None]})
INTERRUPTED: dict[str, Callable[[SteppedProducer], object]] = {
    "key": lambda producer: producer.send("t", b"v" * 99, key=b"k"),
    "partition": lambda producer: producer.send("t", b"v", partition=1, headers=[("h", b"1")]),
    "neither": lambda producer: producer.send("t", b"v" * 50),
    "table": lambda producer: send_table(producer.sender.queues, producer.options, "t", ROWS, 0),
}


@pytest.mark.parametrize("topic", ["new", "known", "known by now"])
@pytest.mark.parametrize(
    ("action", "options"),
    [
        *((action, {}) for action in INTERRUPTED),
        *((action, {"value_serializer": bytes}) for action in [*INTERRUPTED][:3]),
    ],
)
def test_a_send_that_is_interrupted_anywhere_is_refused_or_accepted_whole(
    action: str, topic: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever afterwards, the memory is free again, and rows lie in the partitions that they name."""
    call, is_over = 0, False
    while not is_over:
        on = cluster(t=4)
        producer = SteppedProducer(on, batch_size=160, **options)
        queues = producer.sender.queues
        if topic != "new":
            producer.send("t", b"first", partition=0)
            producer.settle()
        if topic == "known by now":
            monkeypatch.setattr(queues, "partition_count", lambda _: 0)
        before = [producer.send("t", b"before" * 8, key=key) for key in (b"k", None, b"l")]
        is_over = not interrupted_at(call, lambda: INTERRUPTED[action](producer))  # noqa: B023 - called at once
        after = producer.send("t", b"after", key=b"k")
        producer.settle()
        assert all(ticket.result(0) for ticket in [*before, after])
        assert queues.held == 0
        assert not set(on.values("t", 0) if action == "table" else ()) & {b"0"}
        assert not set(on.values("t", 3) if action == "table" else ()) & {b"2"}
        call += 1
    assert call > 5


def test_a_flush_with_nothing_to_settle_does_not_wake_the_send_thread() -> None:
    """It would compete for the GIL with what comes next, a claim for example."""
    producer = SteppedProducer(cluster(t=1))
    producer.send("t", b"v")
    producer.settle()
    woken: list[None] = []
    queues = producer.sender.queues
    queues._wake = lambda: woken.append(None)
    assert queues.wait_until_settled(None)
    assert not woken
    producer.send("t", b"v")
    woken.clear()
    assert not queues.wait_until_settled(0.0)
    assert woken
