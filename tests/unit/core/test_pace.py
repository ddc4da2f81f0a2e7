"""The pace of a background job: none is lost alone, and most of the time is left to others on a busy disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.pace import BackupPace

pytestmark = pytest.mark.unit

SIZE = 8 << 20
seconds = st.floats(min_value=1e-6, max_value=1e3)


@given(st.lists(seconds, min_size=1), seconds)
def test_it_works_for_at_least_a_fifth_of_the_time(writes: list[float], worked: float) -> None:
    pace = BackupPace()
    for each in writes:
        pace.wrote(SIZE, each)
        assert 0 <= pace.contention < 1
        assert 0 <= pace.pause_after(worked) <= 4 * worked


@given(seconds, st.floats(min_value=1, max_value=1.19), st.integers(min_value=1, max_value=20))
def test_alone_it_does_not_pause(first: float, slower: float, count: int) -> None:
    pace = BackupPace()
    pace.wrote(SIZE, first)
    for _ in range(count):
        pace.wrote(SIZE, first * slower)
        assert pace.pause_after(1.0) == 0


@given(seconds, st.floats(min_value=1.3, max_value=100), st.floats(min_value=1.1, max_value=10))
def test_the_slower_its_writes_the_longer_it_pauses(fast: float, slow: float, slower: float) -> None:
    pauses = []
    for factor in (slow, slow * slower):
        pace = BackupPace()
        pace.wrote(SIZE, fast)
        pace.wrote(SIZE, fast * factor)
        pauses.append(pace.pause_after(1.0))
    assert 0 < pauses[0] < pauses[1]


def test_it_goes_on_at_full_speed_when_the_others_have_ended() -> None:
    pace = BackupPace()
    pace.wrote(SIZE, 0.01)
    pace.wrote(SIZE, 0.03)
    assert pace.pause_after(0.04) == pytest.approx(4 * (1 - 1.2 / 3) * 0.04)
    pace.wrote(2 * SIZE, 0.02)
    assert pace.pause_after(0.04) == 0


def test_a_stretch_without_writes_changes_nothing() -> None:
    pace = BackupPace()
    pace.wrote(SIZE, 0.01)
    pace.wrote(SIZE, 0.03)
    before = pace.contention
    pace.wrote(0, 0.0)
    assert pace.contention == before > 0
