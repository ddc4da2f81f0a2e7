"""A flooded topic does not delay the records of others (PROD-6): the send thread, stepped."""

from __future__ import annotations

import pytest

from fencepost.core.producers.window import BATCHES
from fencepost.testing.scripted import Api, ScriptedCluster, ScriptedRequest
from tests.support.stepped import SteppedProducer, cluster

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
