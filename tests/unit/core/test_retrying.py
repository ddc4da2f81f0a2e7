"""Which records come again after a failed batch, and when one is given up."""

from __future__ import annotations

import random

import pytest

from fencepost.core.retrying import Extent, Piece, Retries, Verdict, backoff
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

A, B = TopicPartition("a", 0), TopicPartition("a", 1)


def test_without_failures_a_batch_takes_all() -> None:
    assert Retries(3, isolates=True).cut(A, 5, 100) == Piece(100, alone=False)


def test_the_records_before_a_failed_one_come_first_and_then_it_comes_alone() -> None:
    retries = Retries(3, isolates=True)
    assert retries.failed({A: Extent(0, 100), B: Extent(0, 50)}, (A, 7)) == (Verdict.RETRY, 1)
    assert retries.cut(A, 0, 100) == Piece(7, alone=False)
    assert retries.cut(B, 0, 50) == Piece(50, alone=False)
    assert retries.cut(A, 7, 100) == Piece(8, alone=True)
    assert retries.cut(A, 8, 100) == Piece(100, alone=False)
    retries.done(A, 8)
    assert retries.cut(A, 0, 100) == Piece(100, alone=False)


def test_a_record_that_fails_too_often_is_dead() -> None:
    retries = Retries(2, isolates=True)
    one = {A: Extent(7, 8)}
    assert [retries.failed(one, (A, 7)).verdict for _ in range(3)] == [Verdict.RETRY, Verdict.RETRY, Verdict.DEAD]
    assert retries.cut(A, 7, 100) == Piece(8, alone=True, dead=True)


def test_without_a_place_for_dead_records_the_failure_is_raised() -> None:
    assert Retries(0, isolates=False).failed({A: Extent(0, 9)}, None).verdict is Verdict.RAISE
    retries = Retries(1, isolates=False)
    assert [retries.failed({A: Extent(7, 8)}, (A, 7)).verdict for _ in range(2)] == [Verdict.RETRY, Verdict.RAISE]


def test_partitions_are_tried_apart_before_they_are_halved() -> None:
    retries = Retries(0, isolates=True)
    assert retries.failed({A: Extent(0, 8), B: Extent(0, 4)}, None).verdict is Verdict.NARROW
    assert (retries.cut(A, 0, 8), retries.cut(B, 0, 4)) == (Piece(8, alone=True), Piece(4, alone=True))
    retries.failed({A: Extent(0, 8)}, None)
    assert [retries.cut(A, 0, 8), retries.cut(A, 4, 8)] == [Piece(4, alone=True), Piece(8, alone=True)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_known", [True, False])
def test_exactly_the_bad_records_are_set_aside(seed: int, is_known: bool) -> None:
    """A worker as a model: it fails with every batch that has a bad record, and knows, or not, with which."""
    chance = random.Random(seed)
    retries = Retries(chance.randrange(4), isolates=True)
    ends = {partition: chance.randrange(40) for partition in (A, B)}
    bad = {(partition, at) for partition, end in ends.items() for at in range(end) if chance.random() < 0.1}
    committed, dead = dict.fromkeys(ends, 0), set[tuple[TopicPartition, int]]()
    for _ in range(5000):
        batch: dict[TopicPartition, Extent] = {}
        for partition in chance.sample([A, B], 2):
            start = committed[partition]
            most = min(ends[partition], start + chance.randrange(1, 20))
            if start >= ends[partition]:
                continue
            cut = retries.cut(partition, start, most)
            if cut.alone and batch:
                continue
            batch[partition] = Extent(start, cut.stop)
            if cut.dead:
                assert len(batch) == 1
                dead.add((partition, start))
            if cut.alone:
                break
        if not batch:
            break
        rows = [(partition, at) for partition, extent in batch.items() for at in range(*extent)]
        first = next((row for row in rows if row in bad - dead), None)
        if first is not None:
            assert retries.failed(batch, first if is_known else None).verdict is not Verdict.RAISE
            continue
        for partition, extent in batch.items():
            committed[partition] = extent.stop
            retries.done(partition, extent.stop)
    assert (committed, dead) == (ends, bad)


def test_the_pause_doubles_with_every_failure_up_to_the_longest() -> None:
    assert [backoff(0.1, 0.5, failures) for failures in range(1, 6)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_many_failures_make_no_number_that_is_too_large() -> None:
    assert backoff(0.1, 2.0, 10**9) == 2.0
