"""Many partitions with little to send each (PROD-6, PROD-11): the send thread, stepped."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.produce import dispatch
from fencepost.client.produce.partition_queue import ProducerBatch
from fencepost.core.producers import window
from fencepost.core.producers.inflight import Sent
from fencepost.core.producers.schedule import FEW_PARTITIONS, LONG_GATHER
from fencepost.errors import Expired
from tests.support.scripted import Api, Fate, ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

PARTITIONS = 100
LINGER = 0.02


def crowd(**options: float) -> tuple[ScriptedCluster, SteppedProducer]:
    """Return a producer with a first record of each partition acknowledged; later answers take 50 ms."""
    on = cluster(many=PARTITIONS, other=1)
    producer = SteppedProducer(on, **{"linger": LINGER, **options})  # type: ignore[arg-type]
    for partition in range(PARTITIONS):
        producer.send("many", b"first", partition=partition)
    producer.send("other", b"first", partition=0)
    producer.settle()
    producer.run_for(1.0)
    on.latency = 0.05
    on.seen.clear()
    return on, producer


def to_each(producer: SteppedProducer, value: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.send("many", value, partition=partition)


def sizes(on: ScriptedCluster) -> list[int]:
    """Return the number of batches in each Produce request."""
    return [sum(len(topic.partitions) for topic in request.message.topics) for request in on.requests(Api.PRODUCE)]


def connection(producer: SteppedProducer) -> BrokerConnection:
    found = producer.sender.brokers.of_node(0)
    assert found is not None
    return found


def test_in_a_crowd_a_batch_grows_until_the_one_before_it_is_answered() -> None:
    on, producer = crowd()
    to_each(producer, b"second")
    producer.run_for(LINGER + 0.001)
    assert sizes(on) == [PARTITIONS]
    to_each(producer, b"third")
    producer.run_for(LINGER + 0.01)  # its linger is over, the answer to the second is not there
    to_each(producer, b"fourth")
    assert sizes(on) == [PARTITIONS]
    producer.run_for(LONG_GATHER)
    assert sizes(on) == [PARTITIONS, PARTITIONS]
    producer.settle()
    assert on.values("many", 7) == [b"first", b"second", b"third", b"fourth"]


def test_in_a_crowd_a_batch_does_not_wait_for_an_answer_that_takes_long() -> None:
    on, producer = crowd()
    on.latency = 10.0
    to_each(producer, b"second")
    producer.run_for(LINGER + 0.001)
    to_each(producer, b"third")
    producer.run_for(LINGER + LONG_GATHER + 0.01)
    assert sizes(on) == [PARTITIONS, PARTITIONS]


def test_the_number_of_small_batches_in_flight_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BATCHES", 20)
    on, producer = crowd()
    to_each(producer, b"second")
    most = 0
    for _ in range(10_000):
        producer.sender.run_once()
        most = max(most, connection(producer).window.batches)
        if producer.sender.queues.is_empty:
            break
    assert most == 20
    assert sizes(on) == [20] * 5
    assert all(on.values("many", index) == [b"first", b"second"] for index in range(PARTITIONS))
    assert connection(producer).window.batches == 0


def test_in_a_crowd_that_always_has_more_everybody_gets_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BATCHES", 20)
    on, producer = crowd()
    for number in range(30):
        to_each(producer, b"%d" % number)
        producer.run_for(0.06)
    written = [len(on.values("many", index)) for index in range(PARTITIONS)]
    assert min(written) > 15
    producer.settle()
    expected = [b"first", *(b"%d" % number for number in range(30))]
    assert all(on.values("many", index) == expected for index in range(PARTITIONS))


def test_a_record_of_another_topic_is_in_the_next_request_of_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BATCHES", 20)
    on, producer = crowd()
    to_each(producer, b"second")
    ticket = producer.send("other", b"second", partition=0)
    producer.run_for(LINGER + 0.001)
    (request,) = on.requests(Api.PRODUCE)
    assert "other" in [topic.name for topic in request.message.topics]
    producer.run_for(0.06)
    assert ticket.done()


def test_a_full_batch_does_not_wait_for_the_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BATCHES", 20)
    on, producer = crowd(batch_size=32 << 10)
    on.latency = 10.0
    to_each(producer, b"second")
    producer.run_for(LINGER + 0.001)
    on.seen.clear()
    for _ in range(4):
        producer.send("other", b"x" * (32 << 10), partition=0)
    producer.sender.run_once(0.0)
    assert sizes(on) == [1, 1, 1]  # the fourth is not full


def test_a_full_batch_does_not_wait_for_the_crowd_because_a_small_one_is_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window, "MOST_BATCHES", 20)
    on, producer = crowd(batch_size=32 << 10)
    on.latency = 10.0
    to_each(producer, b"second")
    producer.run_for(LINGER + 0.001)
    on.seen.clear()
    for size in (32 << 10, 100):
        producer.send("other", b"x" * size, partition=0)
    producer.sender.run_once(0.0)
    assert sizes(on) == [1]


def test_a_full_batch_gets_its_turn_beside_large_ones_that_are_not_full() -> None:
    _, producer = crowd(linger=0.0, batch_size=32 << 10)
    topic = producer.sender.queues._topics["many"]

    def keep_busy() -> None:
        for partition, queue in topic.partitions.items():
            if queue.open is None:
                producer.send("many", b"x" * 20_000, partition=partition)

    keep_busy()
    producer.run_for(0.1)
    ticket, _ = (producer.send("other", b"x" * 32_000, partition=0) for _ in range(2))
    for _ in range(1000):
        keep_busy()
        producer.sender.run_once(0.005)
    assert ticket.done()


def test_flush_does_not_wait_for_linger_or_for_the_answer_before_it() -> None:
    on, producer = crowd()
    to_each(producer, b"second")
    producer.sender.queues.flushing += 1
    producer.sender.run_once(0.0)
    to_each(producer, b"third")
    producer.clock.advance(0.001)
    producer.sender.run_once(0.0)
    producer.sender.queues.flushing -= 1
    assert sizes(on) == [PARTITIONS, PARTITIONS]


def test_after_a_large_turn_a_crowd_rests() -> None:
    on, producer = crowd(linger=0.0)
    to_each(producer, b"second")
    producer.sender.run_once(0.0)
    on.latency = 0.0
    assert sizes(on) == [PARTITIONS]
    for _ in range(20):  # the answer comes, and with it more records, but the send thread leaves time to its caller
        producer.sender.run_once(0.001)
        to_each(producer, b"more")
    assert len(sizes(on)) < 10
    producer.settle()
    assert len(on.values("many", 0)) == 22


def test_a_batch_of_a_crowd_that_is_refused_is_sent_again() -> None:
    on, producer = crowd()
    on.next(Api.PRODUCE, Fate.LOSE)
    to_each(producer, b"second")
    producer.run_for(0.5)
    assert all(on.values("many", index) == [b"first", b"second"] for index in range(PARTITIONS))


def test_a_partition_to_send_again_with_a_full_batch_is_in_a_request_once() -> None:
    on, producer = crowd(batch_size=4000)
    on.next(Api.PRODUCE, Fate.LOSE)
    to_each(producer, b"second")
    producer.run_for(LINGER + 0.06)  # it is lost, and not sent again yet
    tickets = [producer.send("many", b"%d" % number + b"x" * 3000, partition=7) for number in range(5)]
    on.seen.clear()
    producer.run_for(2.0)
    for request in on.requests(Api.PRODUCE):
        indexes = [part.index for topic in request.message.topics if topic.name == "many" for part in topic.partitions]
        assert len(indexes) == len(set(indexes))
    assert all(ticket.done() for ticket in tickets)
    assert [(value or b"")[:1] for value in on.values("many", 7)] == [b"f", b"s", b"0", b"1", b"2", b"3", b"4"]


def test_a_record_without_a_partition_expires_beside_a_crowd_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MOST_BATCHES", 20)
    on = cluster(many=PARTITIONS, wide=3)
    producer = SteppedProducer(on, linger=LINGER, delivery_timeout=5.0, request_timeout=60.0)
    to_each(producer, b"first")
    producer.send("wide", b"first")
    producer.settle()
    on.latency = 1000.0
    to_each(producer, b"second")
    producer.run_for(1.0)  # no room is left
    ticket = producer.send("wide", b"second")
    for _ in range(26):
        producer.run_for(0.2)
        to_each(producer, b"more")
    assert isinstance(ticket.exception(0), Expired)


def test_the_send_thread_is_not_woken_for_batches_that_it_will_see_in_time() -> None:
    _, producer = crowd()
    queues = producer.sender.queues
    for partition in range(FEW_PARTITIONS + 1):
        ticket = producer.send("many", b"second", partition=partition)
        assert queues.needs_wake_up(ticket.settlement)
    producer.sender.run_once(0.0)
    ticket = producer.send("many", b"second", partition=PARTITIONS - 1)
    assert not queues.needs_wake_up(ticket.settlement)
    producer.run_for(LINGER + 0.001)
    assert connection(producer).window.batches == FEW_PARTITIONS + 2
    producer.settle()
    producer.sender.run_once(0.0)
    ticket = producer.send("many", b"third", partition=0)
    assert queues.needs_wake_up(ticket.settlement)


def small_ones_behind_large_ones() -> tuple[ScriptedCluster, SteppedProducer]:
    """Return a crowd whose broker is behind: some large batches take the whole window, the others wait."""
    on, producer = crowd(batch_size=32 << 10)
    on.latency = 10.0
    for partition in range(60):
        producer.send("many", b"x" * 20_000, partition=partition)
    producer.run_for(LINGER + 0.001)
    on.latency = 0.01
    for partition in range(60, PARTITIONS):
        producer.send("many", b"small", partition=partition)
    producer.run_for(LINGER + 0.5)
    return on, producer


def test_small_batches_of_a_topic_do_not_take_the_room_of_its_many_large_ones() -> None:
    on, producer = small_ones_behind_large_ones()
    sent = sum(sizes(on))
    assert 0 < sent < 60  # the window is full, and nothing was answered
    producer.settle()
    indexes = [part.index for request in on.requests(Api.PRODUCE) for part in request.message.topics[0].partitions]
    assert sorted(indexes) == list(range(PARTITIONS))
    assert indexes.index(60) >= 60 - FEW_PARTITIONS  # until few are left, who has waited longest is first


def test_a_topic_with_little_to_send_goes_ahead_of_a_line_of_large_batches() -> None:
    on, producer = small_ones_behind_large_ones()
    on.seen.clear()
    producer.send("other", b"second", partition=0)
    producer.run_for(LINGER + 0.001)
    (request,) = on.requests(Api.PRODUCE)
    assert [topic.name for topic in request.message.topics] == ["other"]


def test_small_batches_get_their_turn_beside_endless_large_ones_of_their_topic() -> None:
    _, producer = crowd(linger=0.0, batch_size=32 << 10)
    topic = producer.sender.queues._topics["many"]

    def keep_busy() -> None:
        for partition, queue in list(topic.partitions.items())[:60]:
            if queue.open is None:
                producer.send("many", b"x" * 20_000, partition=partition)

    keep_busy()
    producer.run_for(0.1)
    tickets = [producer.send("many", b"small", partition=partition) for partition in range(60, PARTITIONS)]
    for _ in range(1000):
        keep_busy()
        producer.sender.run_once(0.005)
    assert all(ticket.done() for ticket in tickets)


def test_the_limit_on_small_batches_holds_in_a_line_with_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    on, producer = crowd(batch_size=256 << 10)  # the window has room for everybody
    monkeypatch.setattr(window, "MOST_BATCHES", 50)
    on.latency = 10.0
    for partition in range(PARTITIONS):
        value = b"x" * 20_000 if partition % 2 else b"small"
        producer.send("many", value, partition=partition)
    producer.run_for(LINGER + 0.001)
    assert sum(sizes(on)) == 50 + 50
    to_each(producer, b"more")
    producer.run_for(LINGER + LONG_GATHER + 0.001)
    assert sum(sizes(on)) == 100
    on.latency = 0.01
    producer.settle()


def beside_many_small_ones(small: int) -> tuple[int, int]:
    """Return how many of 40 small batches, and how many of 60 partitions' large ones, are sent in two seconds. They are
    of one topic; each partition of another topic always has a batch of `small` bytes to send."""
    on = cluster(behind=100, others=150)
    producer = SteppedProducer(on, batch_size=32 << 10)
    for topic, partitions in (("behind", 100), ("others", 150)):
        for partition in range(partitions):
            producer.send(topic, b"first", partition=partition)
    producer.settle()
    producer.run_for(1.0)
    on.latency = 0.02

    def keep_busy() -> None:
        for partition in range(60):
            if producer.sender.queues._topics["behind"].partitions[partition].open is None:
                producer.send("behind", b"x" * 20_000, partition=partition)
        for partition in range(150):
            if producer.sender.queues._topics["others"].partitions[partition].open is None:
                producer.send("others", b"x" * small, partition=partition)

    keep_busy()
    producer.run_for(0.1)
    tickets = [producer.send("behind", b"small", partition=partition) for partition in range(60, 100)]
    end = producer.clock.monotonic() + 2.0
    while producer.clock.monotonic() < end:
        keep_busy()
        producer.sender.run_once(0.005)
    return sum(ticket.done() for ticket in tickets), sum(len(on.values("behind", index)) > 1 for index in range(60))


def test_small_batches_in_a_line_get_their_turn_beside_many_of_another_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROD-6: those of the other topic go ahead, and take all places that there are for small batches."""
    monkeypatch.setattr(window, "MOST_BATCHES", 30)
    assert beside_many_small_ones(100) == (40, 60)


def test_a_line_moves_on_beside_another_topics_small_batches_that_fill_the_room() -> None:
    """PROD-6: those of the other topic go ahead, and there are enough of them to fill the window twice."""
    small, large = beside_many_small_ones(5000)
    assert small == 40
    assert large > 20


def test_the_window_does_not_count_as_full_because_of_the_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only sends many small requests learns nothing about what the broker can take."""
    on, producer = crowd(batch_size=32 << 10)
    on.latency = 10.0
    to_each(producer, b"second")
    producer.run_for(LINGER + 0.001)
    monkeypatch.setattr(dispatch, "REQUESTS_IN_FLIGHT", 1)
    for _ in range(2):
        producer.send("other", b"x" * 20_000, partition=0)
    producer.sender.run_once(0.0)
    assert not connection(producer).window._held_back


def test_others_do_not_wait_because_large_batches_take_long_to_compress(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROD-6: the crowd rests after a long turn, but not for the time that went into compression."""
    on, producer = crowd(batch_size=32 << 10)
    requests = producer.sender.dispatch._requests
    encoded = requests.encoded

    def slowly(sent: Sent[ProducerBatch]) -> memoryview:
        producer.clock.advance(0.005)
        return encoded(sent)

    for partition in range(60):
        producer.send("many", b"x" * 20_000, partition=partition)
    with monkeypatch.context() as patched:
        patched.setattr(requests, "encoded", slowly)
        producer.run_for(LINGER + 0.001)
    on.seen.clear()
    producer.send("other", b"second", partition=0)
    producer.run_for(LINGER + 0.005)
    assert "other" in [topic.name for request in on.requests(Api.PRODUCE) for topic in request.message.topics]
