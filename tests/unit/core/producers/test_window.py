"""PROD-6: what is under way to a broker keeps it busy, near or far, and no more than that stands in front of others."""

from __future__ import annotations

from collections import deque

import pytest

from fencepost.core.producers.window import BATCHES, BUSY, ENOUGH, STANDING, Window

pytestmark = pytest.mark.unit

BATCH = 50_000
ROUND_TRIP = 0.0005


class Broker:
    """Takes one request after the other, at a rate, some way off; the producer always has more."""

    def __init__(self, rate: float, round_trip: float = ROUND_TRIP) -> None:
        self.rate, self.round_trip = rate, round_trip
        self.window = Window()
        self.window.went_round(round_trip)
        self.now = 0.0
        self.most_under_way = 0
        self._free_at = 0.0
        self._answers: deque[float] = deque()

    def flood(self, seconds: float) -> float:
        """The rate that comes of it."""
        began, done, self.most_under_way = self.now, 0, 0
        while self.now < began + seconds:
            while self.window.room(BATCH).admits(small=False):
                self.window.sent(BATCH, self.now)
                self._free_at = max(self._free_at, self.now + self.round_trip / 2) + BATCH / self.rate
                self._answers.append(self._free_at + self.round_trip / 2)
            self.most_under_way = max(self.most_under_way, self.window.under_way)
            self.now = self._answers.popleft()
            self.window.answered(BATCH, self.now)
            done += BATCH
        return done / (self.now - began)


def test_before_anything_is_known_large_batches_are_two() -> None:
    """PROD-6: a larger `batch_size` alone puts no more in front of the others."""
    assert Window().size(BATCH) == BATCHES * BATCH
    assert Window().size(512 << 10) == ENOUGH
    assert Window().size(4 << 20) == 8 << 20


def test_before_anything_is_known_a_few_batches_are_under_way() -> None:
    window = Window()
    for _ in range(BATCHES):
        assert window.room(BATCH).admits(small=False)
        window.sent(BATCH, 0.0)
    assert not window.room(BATCH).admits(small=False)


def test_what_is_in_a_request_already_counts_as_under_way() -> None:
    window = Window()
    window.sent(BATCH, 0.0)
    room = window.room(BATCH)
    room.take((BATCHES - 2) * BATCH)
    assert room.admits(small=False)
    room.take(BATCH)
    assert not room.admits(small=False)


def test_a_partition_with_little_to_send_has_room_of_its_own_and_that_ends_too() -> None:
    window = Window()
    window.sent(BATCHES * BATCH, 0.0)
    assert window.room(BATCH).admits(small=True)
    window.sent(BATCHES * BATCH, 0.0)
    assert not window.room(BATCH).admits(small=True)


@pytest.mark.parametrize("rate", [30e6, 300e6, 3e9])
def test_a_nearby_broker_is_kept_busy_with_milliseconds_of_queued_work(rate: float) -> None:
    broker = Broker(rate)
    broker.flood(0.5)
    assert broker.flood(0.5) > 0.98 * rate
    most = max(BATCHES * BATCH, rate * (STANDING + 2 * ROUND_TRIP))
    assert broker.most_under_way <= 1.01 * most + BATCH


@pytest.mark.parametrize("round_trip", [0.02, 0.2])
def test_a_broker_far_away_is_kept_busy_too(round_trip: float) -> None:
    broker = Broker(100e6, round_trip)
    broker.flood(4.0)
    assert broker.flood(1.0) > 0.95 * broker.rate


def test_a_broker_that_becomes_slower_soon_has_less_before_it() -> None:
    broker = Broker(500e6)
    broker.flood(0.5)
    broker.rate = 50e6
    broker.flood(1.5)
    broker.flood(0.5)
    assert broker.most_under_way <= max(BATCHES * BATCH, 1.1 * 50e6 * (STANDING + 2 * ROUND_TRIP)) + BATCH


def test_a_producer_with_little_to_do_says_nothing_about_the_broker() -> None:
    broker = Broker(500e6)
    broker.flood(0.5)
    window = broker.window
    while window.under_way:
        window.answered(BATCH, broker.now + 1.0)
    sizes = []
    for second in range(2, 1000):
        assert window.room(BATCH).admits(small=True)
        window.sent(100, broker.now + second)
        window.answered(100, broker.now + second + 0.05)
        sizes.append(window.size(BATCH))
    assert set(sizes) == {sizes[0]}
    assert sizes[0] > 400e6 * STANDING


def test_answers_that_come_in_a_bunch_are_no_sign_of_a_fast_broker() -> None:
    window = Window()
    window.went_round(ROUND_TRIP)
    now = 0.0
    for _ in range(100):  # forty in ten milliseconds, all told of at the end
        for _ in range(40):
            window.sent(BATCH, now)
        now += 0.01
        window.sent(100, now)
        for _ in range(40):
            window.answered(BATCH, now)
        window.answered(100, now + 1e-6)
    assert window.size(BATCH) == pytest.approx(40 * BATCH / 0.01 * (STANDING + 2 * ROUND_TRIP), rel=0.01)


def test_the_shortest_round_trip_counts() -> None:
    near, far = Broker(500e6), Broker(500e6)
    far.window.went_round(0.3)  # a server that was slow to answer once
    near.flood(1.0)
    far.flood(1.0)
    assert near.window.size(BATCH) == far.window.size(BATCH)


def test_a_small_batch_goes_aside_only_beside_much_on_the_other_connection() -> None:
    window, side = Window(), Window()
    assert not window.goes_aside(side, 0)
    window.sent(BUSY, 0.0)
    assert window.goes_aside(side, 0)
    assert not window.goes_aside(side, BUSY)
    side.sent(BUSY, 0.0)
    assert not window.goes_aside(side, 0)
    side.answered(BUSY, 0.1)
    window.answered(BUSY, 0.1)
    assert not window.goes_aside(side, 0)
