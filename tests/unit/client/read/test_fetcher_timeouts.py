"""When a reader gives up: its leader is silent although it is asked. A caller who takes his time is no reason."""

from __future__ import annotations

from uuid import uuid4

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.fetcher import Fetcher, FetchOptions
from fencepost.errors import TopicRecreated, Unreachable
from fencepost.types import Offset, TopicPartition
from tests.support.clock import HandWoundClock
from tests.support.scripted import Api, Fate, ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

PATIENCE = 10.0
BATCHES = 40


def written(nodes: int = 1) -> ScriptedCluster:
    on = cluster(nodes, t=2)
    producer = SteppedProducer(on)
    for number in range(BATCHES):
        producer.send("t", b"x" * 1000, partition=number % 2)
        producer.settle()
    return on


def fetcher(cluster: ScriptedCluster) -> Fetcher:
    settings = ClientSettings(tuple(cluster.addresses.values()), request_timeout=5.0)
    options = FetchOptions(patience=PATIENCE, partition_bytes=3000)
    places = {TopicPartition("t", number): (Offset(0), Offset(BATCHES // 2)) for number in range(2)}
    return Fetcher(settings, options, cluster.network(), cluster.clock, places)


def read(fetching: Fetcher, clock: HandWoundClock, *, away: float) -> int:
    """Batches read by a caller who works for `away` seconds on every chunk, as `Reader.poll` is called."""
    batches = 0
    while not fetching.is_done:
        while (chunk := fetching.take()) is None:
            fetching.run_once(1.0)
        fetching.run_once(0.0)
        batches += len(chunk.batches)
        clock.advance(away)
    return batches


@pytest.mark.parametrize("away", [0.4 * PATIENCE, 0.7 * PATIENCE, 1.5 * PATIENCE])
def test_a_caller_may_take_its_time_with_what_it_was_given(away: float) -> None:
    cluster = written()
    assert read(fetcher(cluster), cluster.clock, away=away) == BATCHES


def test_what_was_lost_while_the_caller_was_away_is_asked_for_again() -> None:
    cluster = written()
    fetching = fetcher(cluster)
    while fetching.take() is None:
        fetching.run_once(1.0)
    cluster.next(Api.FETCH, Fate.CUT)
    fetching.run_once(0.0)
    cluster.clock.advance(2 * PATIENCE)
    for _ in range(20):
        fetching.run_once(1.0)
    while not fetching.is_done:
        fetching.take()
        fetching.run_once(1.0)


@pytest.mark.parametrize("away", [0.0, 0.5 * PATIENCE])
def test_a_leader_that_does_not_answer_is_given_up_after_the_readers_patience(away: float) -> None:
    cluster = written()
    fetching = fetcher(cluster)
    cluster.deal(Fate.IGNORE, Api.FETCH)
    began = cluster.clock.monotonic()

    def wait() -> None:
        while fetching.take() is None:
            fetching.run_once(1.0)
            cluster.clock.advance(away)

    with pytest.raises(Unreachable, match=r"t-0|t-1"):
        wait()
    assert PATIENCE <= cluster.clock.monotonic() - began < 3 * PATIENCE


def test_the_caller_hears_at_once_that_a_topic_was_created_again() -> None:
    cluster = written(nodes=2)
    cluster.topic_ids["t"] = uuid4()
    fetching = fetcher(cluster)
    while fetching.take() is None:
        fetching.run_once()
    cluster.topic_ids["t"] = uuid4()
    for partition in range(2):
        cluster.move_leader("t", partition, 1 - partition)
    began = cluster.clock.monotonic()

    def wait() -> None:
        while True:
            fetching.take()
            fetching.run_once()

    with pytest.raises(TopicRecreated):
        wait()
    assert cluster.clock.monotonic() - began < 1.0, "nobody else winds this clock"
