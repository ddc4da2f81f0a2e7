"""The stats of a producer: how much each queue holds, since when, and how brokers answer (PROD-5, PROD-6)."""

from __future__ import annotations

import pytest

from fencepost.client.produce.settling import Settling
from fencepost.client.produce.stats import ProducerStats
from tests.support.scripted import Api, Fate
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit


def test_a_partition_shows_its_depth_age_flight_retries_and_leader() -> None:
    on = cluster(2, t=2)
    producer = SteppedProducer(on, request_timeout=1.0)
    producer.send("t", b"first", partition=1)
    producer.settle()
    assert producer.sender.reporting.look().partitions == ()
    on.next(Api.PRODUCE, Fate.CUT)
    on.latency = 0.5
    for _ in range(3):
        producer.send("t", b"x" * 100, partition=1)
    producer.run_for(0.1)
    (shown,) = producer.sender.reporting.look().partitions
    assert (shown.topic, shown.partition, shown.records, shown.in_flight, shown.leader) == ("t", 1, 3, 1, 1)
    assert shown.retries == 0
    assert 300 < shown.bytes == producer.sender.reporting.look().bytes
    assert shown.oldest == pytest.approx(0.1, abs=0.01)
    producer.run_for(2.0)
    producer.settle()
    flight = producer.sender.queues._topics["t"].partitions[1].flight
    assert flight is not None
    assert flight.retries == 1
    stats = producer.sender.reporting.look()
    assert (stats.records, stats.bytes) == (0, 0)
    leader = next(each for each in stats.brokers if each.node == 1)
    assert leader.is_ready
    assert (leader.requests, leader.bytes) == (0, 0)
    assert leader.last_answer == pytest.approx(0.5, abs=0.1)
    assert leader.round_trip is not None


def test_records_of_an_unknown_topic_are_seen_in_its_undesignated_queue() -> None:
    on = cluster()
    on.creates_topics = False
    producer = SteppedProducer(on)
    producer.send("new", b"value")
    producer.run_for(1.0)
    (shown,) = producer.sender.reporting.look().partitions
    assert (shown.topic, shown.partition, shown.records, shown.leader) == ("new", -1, 1, None)
    assert shown.oldest == pytest.approx(1.0, abs=0.01)


def test_a_partition_without_a_leader_is_seen_to_have_none() -> None:
    on = cluster(t=1)
    producer = SteppedProducer(on)
    producer.send("t", b"first")
    producer.settle()
    on.move_leader("t", 0, -1)
    producer.send("t", b"stuck")
    producer.run_for(2.0)
    (shown,) = producer.sender.reporting.look().partitions
    assert (shown.leader, shown.records) == (None, 1)


def test_records_that_are_acknowledged_and_wait_for_their_commit_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an owner on Apache Kafka, whose coordinator may hang."""
    on = cluster(t=1)
    producer = SteppedProducer(on)
    monkeypatch.setattr(Settling, "deliver", lambda self, batch, base_offset, append_time: None)
    producer.send("t", b"value", partition=0)
    producer.run_for(2.0)
    stats = producer.sender.reporting.look()
    (shown,) = stats.partitions
    assert (shown.records, shown.in_flight, stats.records) == (1, 0, 1)
    assert shown.bytes == stats.bytes > 0
    assert shown.oldest == pytest.approx(2.0, abs=0.01)


def test_the_hook_is_called_at_its_interval_and_may_raise() -> None:
    heard: list[ProducerStats] = []

    def hook(stats: ProducerStats) -> None:
        heard.append(stats)
        raise ValueError("the user's")

    on = cluster(t=1)
    producer = SteppedProducer(on, on_stats=hook, stats_interval=2.0)
    producer.send("t", b"value")
    producer.run_for(9.0)
    assert len(heard) == 4
    assert heard[-1].records == 0
