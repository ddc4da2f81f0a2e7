"""The limit on the bytes of requests in memory."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.server.net.request_memory import SMALL, Pool, RequestMemory

pytestmark = pytest.mark.unit


class Reader:
    """A connection that reads frames of these sizes one after the other, each in steps."""

    def __init__(self, pool: Pool, *sizes: int, step: int = 1 << 30) -> None:
        self.pool = pool
        self.wanted = list(sizes)
        self.step = step
        self.paid = 0
        """Of the frame that is being read."""
        self.held: list[int] = []
        self.waits = False

    def memory_freed(self) -> None:
        self.waits = False
        while self.wanted:
            rest = self.wanted[0] - self.paid
            taken = self.pool.reserve(min(self.step, rest), rest, self)
            if not taken:
                self.waits = True
                return
            self.paid += taken
            if self.paid == self.wanted[0]:
                self.held.append(self.wanted.pop(0))
                self.paid = 0

    begin = memory_freed

    def answer(self) -> None:
        self.pool.release(self.held.pop(0))


def test_a_frame_waits_until_others_are_answered() -> None:
    pool = Pool(100)
    first, second, third = Reader(pool, 80), Reader(pool, 50), Reader(pool, 10)
    for reader in (first, second, third):
        reader.begin()
    assert second.held == [50]  # the pool was not overdrawn yet
    assert third.held == []
    assert pool.contended
    second.answer()
    assert third.held == [10]
    assert pool.used == 90


def test_one_frame_alone_always_fits() -> None:
    pool = Pool(10)
    reader = Reader(pool, 1000, step=1)
    reader.begin()
    assert reader.held == [1000]


def test_connections_that_wait_are_served_in_order() -> None:
    pool = Pool(100)
    first, large, small = Reader(pool, 190), Reader(pool, 160), Reader(pool, 5)
    for reader in (first, large, small):
        reader.begin()
    assert (large.held, small.held) == ([], [])
    first.answer()
    assert (large.held, small.held) == ([160], [])
    large.answer()
    assert small.held == [5]


def test_requests_that_are_half_there_do_not_block_each_other() -> None:
    """Each holds some memory and needs more: the first in line gets all that it needs."""
    pool = Pool(100)
    readers = [Reader(pool, 80, step=20) for _ in range(5)]
    for reader in readers:
        reader.step = 20
        reader.wanted = [80]
        taken = pool.reserve(20, 80, reader)
        reader.paid += taken
    assert pool.used == 100
    for reader in readers:
        reader.begin()
    done = 0
    while ready := [reader for reader in readers if reader.held]:
        assert pool.used <= 100 + 80
        ready[0].answer()
        done += 1
    assert done == 5
    assert pool.used == 0


def test_a_connection_that_is_lost_leaves_the_line() -> None:
    pool = Pool(100)
    first, gone, last = Reader(pool, 190), Reader(pool, 60), Reader(pool, 60)
    for reader in (first, gone, last):
        reader.begin()
    pool.forget(gone)
    first.answer()
    assert (gone.held, last.held) == ([], [60])


def test_large_requests_and_small_ones_do_not_wait_for_each_other() -> None:
    memory = RequestMemory(4 * SMALL)
    large = [Reader(memory.pool_for(4 * SMALL), 4 * SMALL) for _ in range(2)]
    small = Reader(memory.pool_for(SMALL), SMALL)
    for reader in large:
        reader.begin()
    assert large[1].waits
    small.begin()
    assert small.held == [SMALL]


@given(
    st.lists(st.lists(st.integers(1, 120), max_size=6), max_size=6),
    st.integers(1, 50),
    st.randoms(use_true_random=False),
)
def test_whatever_is_asked_everybody_is_served_and_the_bound_holds(
    sizes: list[list[int]], step: int, random: object
) -> None:
    limit, largest = 100, 120
    pool = Pool(limit)
    readers = [Reader(pool, *wanted, step=step) for wanted in sizes]
    for reader in readers:
        reader.begin()
    while busy := [reader for reader in readers if reader.held]:
        assert pool.used == sum(sum(reader.held) + reader.paid for reader in readers)
        assert pool.used <= limit + largest
        random.choice(busy).answer()  # type: ignore[attr-defined]
    assert all(not reader.wanted for reader in readers)
    assert pool.used == 0


def test_thousands_that_wait_may_leave_at_the_same_moment() -> None:
    pool = Pool(1)
    Reader(pool, 10).begin()
    readers = [Reader(pool, 10) for _ in range(20_000)]
    for reader in readers:
        reader.begin()
    began = time.process_time()
    for reader in reversed(readers):
        pool.forget(reader)
    assert time.process_time() - began < 0.5  # to look for each in the line takes ten times as long
    assert not pool.contended
