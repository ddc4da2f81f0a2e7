"""Many partitions with small batches (PROD-9, PROD-11): the send thread, stepped."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.metadata import Metadata
from fencepost.client.produce.partition_queue import PartitionQueue
from fencepost.client.produce.queues import Queues
from fencepost.client.produce.ticket import Ticket
from fencepost.core.producers.schedule import Decision
from fencepost.errors import ErrorCode, Expired
from tests.support.scripted import Api, ErrorAnswer, Fate, ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

PARTITIONS = 50


def many(**options: float) -> tuple[ScriptedCluster, SteppedProducer]:
    """Return a producer whose topic is known, with a first record of each partition acknowledged; later answers take a
    second."""
    on = cluster(many=PARTITIONS)
    producer = SteppedProducer(on, **options)  # type: ignore[arg-type]
    for partition in range(PARTITIONS):
        producer.send("many", b"first", partition=partition)
    producer.settle()
    on.latency = 1.0
    return on, producer


def active(queues: Queues) -> set[int]:
    return {queue.index for queue in queues.active()}


def test_a_queue_that_has_nothing_left_is_not_looked_at_again() -> None:
    on, producer = many()
    queues = producer.sender.queues
    assert active(queues) == set()
    producer.send("many", b"second", partition=7)
    producer.send("many", b"second", partition=8)
    producer.sender.run_once(0.0)
    producer.send("many", b"third", partition=8)
    assert active(queues) == {7, 8}
    producer.step_until(lambda: len(on.values("many", 8)) == 2)
    producer.step_until(lambda: active(queues) == {8})
    producer.settle()
    assert active(queues) == set()
    assert on.values("many", 8) == [b"first", b"second", b"third"]


def test_a_failed_batch_is_sent_again_though_its_queue_is_empty() -> None:
    on, producer = many()
    on.next(Api.PRODUCE, ErrorAnswer(ErrorCode.NOT_ENOUGH_REPLICAS))
    ticket = producer.send("many", b"second", partition=7)
    producer.settle()
    assert ticket.result(0).partition == 7
    assert on.values("many", 7) == [b"first", b"second"]


def test_batches_in_flight_expire_at_their_deadlines_though_their_queues_are_empty() -> None:
    on, producer = many(delivery_timeout=20.0, request_timeout=100.0)
    on.next(Api.PRODUCE, *[Fate.IGNORE] * PARTITIONS)
    deadlines: dict[Ticket, float] = {}
    for partition in range(PARTITIONS):
        deadlines[producer.send("many", b"second", partition=partition)] = producer.clock.monotonic() + 20.0
        producer.sender.run_once(0.0)
        producer.clock.advance(0.01)
    while not all(ticket.done() for ticket in deadlines):
        producer.sender.run_once()
        now = producer.clock.monotonic()
        late = [
            now - deadline for ticket, deadline in deadlines.items() if deadline < now - 0.011 and not ticket.done()
        ]
        assert late == []
        assert not any(ticket.done() for ticket, deadline in deadlines.items() if deadline > now)
    assert all(isinstance(ticket.exception(0), Expired) for ticket in deadlines)


def looks(producer: SteppedProducer, monkeypatch: pytest.MonkeyPatch, turns: int = 100) -> int:
    """Return how often a partition is looked at in so many turns, in each of which one record comes."""
    schedule, count = producer.sender.queues.schedule, 0
    decide, leader = schedule.decide, Metadata.leader

    def decided(queue: PartitionQueue, now: float) -> Decision:
        nonlocal count
        count += 1
        return decide(queue, now)

    def looked_up(metadata: Metadata, topic: str, partition: int) -> int:
        nonlocal count
        count += 1
        return leader(metadata, topic, partition)

    with monkeypatch.context() as patched:
        patched.setattr(schedule, "decide", decided)
        patched.setattr(Metadata, "leader", looked_up)
        for _ in range(turns):
            producer.send("one", b"more", partition=0)
            producer.sender.run_once(0.001)
    return count


def test_partitions_that_wait_for_a_producer_id_are_not_looked_at_in_every_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PROD-11."""
    on = cluster(many=PARTITIONS, one=1)
    on.choose = lambda request: Fate.IGNORE if request.key == Api.INIT_PRODUCER_ID else Fate.ANSWER
    producer = SteppedProducer(on, linger=0.0)
    tickets = [producer.send("many", b"first", partition=partition) for partition in range(PARTITIONS)]
    tickets.append(producer.send("one", b"first", partition=0))
    producer.run_for(0.5)
    assert looks(producer, monkeypatch) < 10 * PARTITIONS
    on.choose = lambda request: Fate.ANSWER
    producer.settle()
    assert all(ticket.exception(0) is None for ticket in tickets)


def test_partitions_that_wait_for_a_leader_are_not_looked_at_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROD-11."""
    on = cluster(2, many=PARTITIONS, one=1)
    for partition in range(PARTITIONS):
        on.move_leader("many", partition, 1)
    producer = SteppedProducer(on, linger=0.0)
    producer.send("one", b"first", partition=0)
    producer.send("many", b"first", partition=0)
    producer.settle()
    on.kill(1)
    tickets = [producer.send("many", b"second", partition=partition) for partition in range(PARTITIONS)]
    producer.run_for(1.0)
    assert looks(producer, monkeypatch) < 20 * PARTITIONS
    on.revive(1)
    producer.settle()
    assert all(ticket.exception(0) is None for ticket in tickets)
