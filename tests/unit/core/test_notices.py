"""What happens again and again is told of at once, and then at intervals."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.notices import INTERVAL, Notices

pytestmark = pytest.mark.unit

events = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 3 * INTERVAL)), max_size=40)


@given(events)
def test_each_thing_is_told_of_at_once_and_then_once_per_interval(happened: list[tuple[str, float]]) -> None:
    happened.sort(key=lambda event: event[1])
    notices: Notices[str] = Notices()
    told = [(what, at) for what, at in happened if notices.is_due(what, at)]
    for thing in "ab":
        all_of_it = [at for what, at in happened if what == thing]
        times = [at for what, at in told if what == thing]
        assert times[:1] == all_of_it[:1]
        assert all(later - earlier >= INTERVAL for earlier, later in pairwise(times))
        # Nothing is kept back for longer than the interval.
        assert all(any(0 <= at - known < INTERVAL for known in times) for at in all_of_it)
