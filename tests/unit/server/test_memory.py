"""The bound on the bytes of requests held at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.server.memory import RequestMemory

pytestmark = pytest.mark.unit


class Reader:
    """A connection that wants to read frames of these sizes, one after the other."""

    def __init__(self, memory: RequestMemory, *sizes: int) -> None:
        self.memory = memory
        self.wanted = list(sizes)
        self.held: list[int] = []

    def memory_freed(self) -> None:
        while self.wanted and self.memory.reserve(self.wanted[0], self):
            self.held.append(self.wanted.pop(0))

    begin = memory_freed

    def answer(self) -> None:
        self.memory.release(self.held.pop(0))


def test_a_frame_waits_until_others_are_answered() -> None:
    memory = RequestMemory(100)
    first, second = Reader(memory, 80), Reader(memory, 50)
    first.begin()
    second.begin()
    assert second.held == []
    assert memory.contended
    first.answer()
    assert second.held == [50]
    assert memory.used == 50


def test_one_frame_alone_always_fits() -> None:
    memory = RequestMemory(10)
    reader = Reader(memory, 1000)
    reader.begin()
    assert reader.held == [1000]


def test_those_who_wait_are_served_in_order_and_a_small_one_does_not_overtake() -> None:
    memory = RequestMemory(100)
    first, large, small = Reader(memory, 90), Reader(memory, 60), Reader(memory, 5)
    for reader in (first, large, small):
        reader.begin()
    assert (large.held, small.held) == ([], [])
    first.answer()
    assert (large.held, small.held) == ([60], [5])


def test_a_large_one_stays_first_in_line_when_what_was_freed_is_too_little() -> None:
    memory = RequestMemory(100)
    a, b, large, small = Reader(memory, 50), Reader(memory, 50), Reader(memory, 80), Reader(memory, 5)
    for reader in (a, b, large, small):
        reader.begin()
    a.answer()
    assert (large.held, small.held) == ([], [])
    b.answer()
    assert (large.held, small.held) == ([80], [5])


def test_a_connection_that_is_lost_leaves_the_line() -> None:
    memory = RequestMemory(100)
    first, gone, last = Reader(memory, 90), Reader(memory, 60), Reader(memory, 60)
    for reader in (first, gone, last):
        reader.begin()
    memory.forget(gone)
    first.answer()
    assert (gone.held, last.held) == ([], [60])


@given(st.lists(st.lists(st.integers(1, 120), max_size=6), max_size=6), st.randoms(use_true_random=False))
def test_whatever_is_asked_everybody_is_served_and_the_bound_holds(sizes: list[list[int]], random: object) -> None:
    limit = 100
    memory = RequestMemory(limit)
    readers = [Reader(memory, *wanted) for wanted in sizes]
    for reader in readers:
        reader.begin()
    while busy := [reader for reader in readers if reader.held]:
        assert memory.used == sum(sum(reader.held) for reader in readers)
        assert memory.used <= limit or sum(len(reader.held) for reader in readers) == 1
        random.choice(busy).answer()  # type: ignore[attr-defined]
    assert all(not reader.wanted for reader in readers)
    assert memory.used == 0
