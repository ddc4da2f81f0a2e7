"""A flooded topic does not delay the records of others (PROD-6): the send thread, stepped."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.connection import BrokerConnection
from fencepost.core.producers.window import BATCHES
from tests.support.scripted import Api, DelayedAnswer, Fate, ScriptedCluster, ScriptedRequest
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

BATCH = 32 << 10
LARGE = b"x" * (BATCH - 200)
"""A batch of its own."""


def flooded(**options: int) -> tuple[ScriptedCluster, SteppedProducer]:
    """Return a producer with both topics known and their first records acknowledged; later answers take a second."""
    on = cluster(flood=4, light=1)
    producer = SteppedProducer(on, batch_size=BATCH, **options)  # type: ignore[arg-type]
    for partition in range(4):
        producer.send("flood", b"first", partition=partition)
    producer.send("light", b"first")
    producer.settle()
    on.latency = 1.0
    on.seen.clear()
    return on, producer


def pour(producer: SteppedProducer, batches: int = 200) -> None:
    for number in range(batches):
        producer.send("flood", LARGE, partition=number % 4)


def topics(request: ScriptedRequest) -> list[str]:
    return [topic.name for topic in request.message.topics]


def test_a_flood_has_only_so_much_under_way_as_keeps_the_broker_busy() -> None:
    on, producer = flooded()
    pour(producer)
    for _ in range(5):
        producer.sender.run_once(0.0)
    connection = producer.sender.brokers.of_node(0)
    assert connection is not None
    assert connection.window.size(BATCH) == BATCHES * BATCH
    assert connection.window.under_way < (BATCHES + 1) * BATCH  # the limit is passed by one, and not by all of 200
    producer.settle()
    assert len(on.values("flood", 0)) == 51


def test_a_record_of_another_topic_goes_at_once_though_the_flood_has_to_wait() -> None:
    on, producer = flooded()
    pour(producer)
    producer.sender.run_once(0.0)
    on.seen.clear()
    ticket = producer.send("light", b"one")
    producer.sender.run_once(0.0)
    assert [topics(request) for request in on.requests(Api.PRODUCE)] == [["light"]]
    producer.run_for(1.0)
    assert ticket.done()


def test_a_record_of_another_partition_goes_at_once_though_a_hot_one_has_to_wait() -> None:
    on, producer = flooded()
    for _ in range(50):
        producer.send("flood", LARGE, partition=0)
    producer.sender.run_once(0.0)
    on.seen.clear()
    producer.send("flood", b"one", partition=3)
    producer.sender.run_once(0.0)
    (request,) = on.requests(Api.PRODUCE)
    assert [part.index for topic in request.message.topics for part in topic.partitions] == [3]


def test_where_there_is_room_for_both_the_little_one_goes_ahead_and_by_itself() -> None:
    on, producer = flooded()
    pour(producer, batches=2)
    producer.send("light", b"one")
    producer.sender.run_once(0.0)
    assert [topics(request) for request in on.requests(Api.PRODUCE)] == [["light"], ["flood"]]


def test_many_that_have_little_share_a_request() -> None:
    on, producer = flooded()
    for partition in range(4):
        producer.send("flood", b"little", partition=partition)
    producer.send("light", b"one")
    producer.sender.run_once(0.0)
    assert [sorted(topics(request)) for request in on.requests(Api.PRODUCE)] == [["flood", "light"]]


def test_without_acknowledgements_what_has_left_makes_room() -> None:
    on, producer = flooded(acks="none", idempotent=False)  # type: ignore[arg-type]
    pour(producer)
    producer.settle()
    assert len(on.values("flood", 0)) == 51
    connection = producer.sender.brokers.of_node(0)
    assert connection is not None
    assert connection.window.under_way == 0


def beside(producer: SteppedProducer) -> BrokerConnection | None:
    (main,) = producer.sender.brokers
    return producer.sender.brokers.side(main.address)


def flooded_with_a_side(**options: int) -> tuple[ScriptedCluster, SteppedProducer]:
    """Return one that is flooding, and has dialled its side connection for a first record beside the flood."""
    on, producer = flooded(**options)
    on.latency = 0.001
    pour(producer)
    producer.sender.run_once(0.0)
    producer.send("light", b"before")
    producer.step_until(lambda: (side := beside(producer)) is not None and side.is_ready)
    producer.step_until(lambda: on.values("light", 0) == [b"first", b"before"])
    pour(producer)
    on.latency = 1.0
    producer.sender.run_once(0.0)
    on.seen.clear()
    return on, producer


def test_a_record_beside_a_flood_does_not_wait_behind_it_on_its_connection() -> None:
    on, producer = flooded_with_a_side()
    on.next(Api.PRODUCE, Fate.ANSWER)
    producer.send("light", b"one")
    producer.sender.run_once(0.0)
    (request,) = on.requests(Api.PRODUCE)
    assert topics(request) == ["light"]
    (main,) = producer.sender.brokers
    assert main.in_flight
    side = beside(producer)
    assert side is not None
    assert side.in_flight == 1
    producer.settle()
    assert on.values("light", 0) == [b"first", b"before", b"one"]


def test_the_next_batch_waits_for_the_answer_of_the_side_connection() -> None:
    """PROD-4: nobody promises an order between two connections."""
    on, producer = flooded_with_a_side()
    producer.send("light", b"one")
    producer.sender.run_once(0.0)
    on.seen.clear()
    producer.send("light", LARGE)  # not little: it would go with the flood
    producer.sender.queues.flushing += 1
    for _ in range(5):
        producer.sender.run_once(0.0)
    assert "light" not in [name for request in on.requests(Api.PRODUCE) for name in topics(request)]
    producer.settle()
    assert on.values("light", 0) == [b"first", b"before", b"one", LARGE]


def test_a_batch_that_expires_on_the_side_connection_still_holds_the_next_one_back() -> None:
    """The request may still arrive, and the next batch must not overtake it."""
    on, producer = flooded_with_a_side(delivery_timeout=2, request_timeout=60)
    on.deal(DelayedAnswer(10.0), Api.PRODUCE)
    lost = producer.send("light", b"one")
    producer.run_for(2.5)
    assert lost.exception() is not None
    on.seen.clear()
    late = producer.send("light", b"two")
    producer.run_for(1.0)
    assert "light" not in [name for request in on.requests(Api.PRODUCE) for name in topics(request)]
    producer.run_for(20.0)
    assert late.done()


def test_without_its_side_connection_a_producer_goes_on() -> None:
    on, producer = flooded_with_a_side()
    on.next(Api.PRODUCE, Fate.CUT)
    ticket = producer.send("light", b"one")
    producer.sender.run_once(0.0)
    side = beside(producer)
    assert side is not None
    producer.settle()
    assert ticket.exception() is None
    assert on.values("light", 0) == [b"first", b"before", b"one"]
    assert beside(producer) is not side
    assert [each.is_ready for each in producer.sender.brokers] == [True]  # the other connection was not affected


@pytest.mark.parametrize("options", [{"idempotent": False}, {"idempotent": False, "acks": "none"}], ids=str)
def test_one_whose_batches_are_not_numbered_has_no_side_connection(options: dict[str, int]) -> None:
    """What is given up there could still arrive, behind its successor."""
    on, producer = flooded(**options)
    pour(producer)
    producer.sender.run_once(0.0)
    producer.send("light", b"one")
    for _ in range(5):
        producer.sender.run_once(0.0)
    assert beside(producer) is None
    assert on.requests(Api.PRODUCE)


def test_a_mirror_of_many_small_partitions_shares_requests_on_one_connection() -> None:
    """PROD-11: hundreds of small requests would cost more than they gain."""
    on = cluster(flood=1, mirror=200)
    producer = SteppedProducer(on, batch_size=BATCH)
    producer.send("flood", b"first")
    for partition in range(200):
        producer.send("mirror", b"first", partition=partition)
    producer.settle()
    on.latency = 1.0
    for _ in range(50):
        producer.send("flood", LARGE)
    producer.sender.run_once(0.0)
    on.seen.clear()
    for partition in range(200):
        producer.send("mirror", b"one", partition=partition)
    for _ in range(5):
        producer.sender.run_once(0.0)
    assert beside(producer) is None
    first = on.requests(Api.PRODUCE)[0]
    assert topics(first) == ["mirror"]
    assert sum(len(topic.partitions) for topic in first.message.topics) == 200
