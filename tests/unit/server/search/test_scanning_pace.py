"""The pace of a search."""

from __future__ import annotations

import pytest

from fencepost.server.search.scanning import WINDOW_SECONDS, SearchPace

pytestmark = pytest.mark.unit


def test_a_search_rests_long_while_the_server_is_busy() -> None:
    pace = SearchPace(0.0, 0.0, 0.0)
    pace.measure(1.0, 0.9, 0.1)  # the rest of the server has used 0.8 of a second
    assert pace.rest_after(0.001) > 0.009
    pace.measure(2.0, 1.59, 0.75)  # and now 0.04: the other 0.65 were the search itself
    assert pace.rest_after(0.001) < 0.001
    pace.resume(9.0, 0.0, 0.0)
    assert pace.rest_after(0.001) < 0.001


def test_the_load_is_not_known_at_first() -> None:
    pace = SearchPace(0.0, 0.0, 0.0)
    busy = pace.rest_after(0.001)
    pace.measure(WINDOW_SECONDS / 2, 0.0, 0.0)
    assert pace.rest_after(0.001) == busy > 0.009


@pytest.mark.parametrize("worked", [-1.0, 0.0])
def test_no_work_needs_no_rest(worked: float) -> None:
    assert SearchPace(0.0, 0.0, 0.0).rest_after(worked) == 0.0


def test_a_long_slice_is_followed_by_a_bounded_rest() -> None:
    assert SearchPace(0.0, 0.0, 0.0).rest_after(100.0) < 1.0
