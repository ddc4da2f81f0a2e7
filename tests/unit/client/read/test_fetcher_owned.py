"""A reader that owns, stepped: signs of life, and what it no longer hands out when the connection is lost (OWN-9)."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.claim import Loss
from fencepost.client.read.fetcher import Chunk, Fetcher, FetchOptions
from fencepost.core.own.claim_request import check_claim
from fencepost.errors import Fenced, TimedOut, Unreachable
from fencepost.types import Offset, TopicPartition
from tests.support.scripted import Api, DelayedAnswer, Fate, ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

AT = TopicPartition("t", 0)
START = {AT: (Offset(0), None)}


def written(*values: str) -> ScriptedCluster:
    """A log of one partition, each value a batch of its own."""
    on = cluster(knows_own=True, t=1)
    producer = SteppedProducer(on)
    for value in values:
        producer.send("t", value, partition=0)
        producer.settle()
    return on


def fetcher(cluster: ScriptedCluster) -> Fetcher:
    settings = ClientSettings(tuple(cluster.addresses.values()), request_timeout=5.0)
    return Fetcher(settings, FetchOptions(), cluster.network(), cluster.clock, START)


def owning(cluster: ScriptedCluster, session: float = 0.0) -> Fetcher:
    fetching = fetcher(cluster)
    claim = fetching.owner.claim(check_claim("g", ["t-0"], generation=1, session=session))
    fetching.run_until(claim.outcome)
    claim.outcome.result()
    return fetching


def next_chunk(fetching: Fetcher) -> Chunk:
    while (chunk := fetching.take()) is None:
        fetching.run_once(0.1)
    return chunk


def test_nothing_is_fetched_before_the_claim_is_answered() -> None:
    cluster = written("a")
    fetching = owning(cluster)
    assert cluster.requests(Api.FETCH) == []
    assert next_chunk(fetching).next == 1
    assert len(fetching._network._links) == 1  # type: ignore[attr-defined]


def test_what_was_fetched_and_not_handed_out_is_dropped_when_somebody_takes_over() -> None:
    cluster = written("a", "b")
    fetching = owning(cluster)
    while not fetching._ready:
        fetching.run_once(0.1)
    cluster.take_over("g", "t-0")
    for _ in range(3):
        fetching.run_once(0.1)
    with pytest.raises(Fenced):
        fetching.take()
    with pytest.raises(Fenced):
        fetching.ask(Api.METADATA, {"topics": []}, 1)


def test_a_fenced_reader_does_not_come_back_by_itself() -> None:
    cluster = written("a")
    fetching = owning(cluster)
    cluster.take_over("g", "t-0")
    seen = 0
    for turn in range(50):
        fetching.run_once(1.0)
        seen = seen or (len(cluster.seen) if turn == 10 else 0)
    assert len(cluster.seen) == seen
    with pytest.raises(Fenced):
        fetching.take()


def test_an_answer_to_what_was_asked_before_it_began_anew_is_not_handed_out() -> None:
    cluster = written("a", "b", "c")
    fetching = fetcher(cluster)
    cluster.next(Api.FETCH, DelayedAnswer(1.0))
    while not cluster.requests(Api.FETCH):
        fetching.run_once(0.1)
    fetching.begin({AT: (Offset(2), None)})
    assert next_chunk(fetching).start == 2


def test_signs_of_life_are_given_while_records_are_asked_for() -> None:
    cluster = written("a")
    fetching = owning(cluster, session=4.0)
    before = len(cluster.requests(Api.OWN))
    end = cluster.clock.monotonic() + 10.0
    while cluster.clock.monotonic() < end:
        fetching.run_once(0.1)
        fetching.take()
    assert 8 <= len(cluster.requests(Api.OWN)) - before <= 10


def test_a_claim_whose_answer_is_lost_leaves_an_ordinary_reader() -> None:
    cluster = written("a")
    fetching = fetcher(cluster)
    cluster.next(Api.OWN, Fate.CUT)
    claim = fetching.owner.claim(check_claim("g", ["t-0"], generation=1))
    fetching.run_until(claim.outcome)
    with pytest.raises(Unreachable):
        claim.outcome.result()
    assert next_chunk(fetching).next == 1


def test_a_claim_without_an_answer_ends_in_time() -> None:
    cluster = written("a")
    cluster.kill(0)
    fetching = fetcher(cluster)
    claim = fetching.owner.claim(check_claim("g", ["t-0"], generation=1))
    with pytest.raises(TimedOut, match="nothing listens"):
        fetching.run_until(claim.outcome)


def test_a_reader_may_work_for_almost_a_session_between_two_reads() -> None:
    """OWN-8: the answer to the last heartbeat has arrived long ago, but only who drives the reader reads it. Whoever
    asks reads it first."""
    cluster = written("a")
    fetching = owning(cluster, session=4.0)
    loss = Loss(fetching.owner.lease, cluster.clock)
    loss.before_lease_ends = fetching.read_answers
    for _ in range(10):
        fetching.run_once(0.0)
        cluster.clock.advance(3.5)
        assert loss.look() is None
    cluster.clock.advance(4.0)
    assert loss.look() is not None
    fetching.run_once(0.0)
    with pytest.raises(Fenced, match="the lease is over"):
        next_chunk(fetching)
