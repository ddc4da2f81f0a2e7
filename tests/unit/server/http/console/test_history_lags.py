"""The lags of groups over the last samples."""

from __future__ import annotations

import pytest

from fencepost.server.http.console.history import LagHistory
from fencepost.server.views.groups import GroupLag

pytestmark = pytest.mark.unit


def lags(**known: int) -> dict[str, GroupLag]:
    return {group: GroupLag(lag, 0, 1) for group, lag in known.items()}


def test_the_last_samples_are_kept_in_order() -> None:
    history = LagHistory(3, 10)
    for lag in range(5):
        history.add(lags(billing=lag))
    assert history.of("billing") == [2, 3, 4]


def test_a_group_that_came_later_has_no_lag_before() -> None:
    history = LagHistory(3, 10)
    history.add({})
    history.add(lags(billing=7))
    assert history.of("billing") == [None, 7]


def test_a_lag_that_is_known_in_part_is_unknown() -> None:
    history = LagHistory(3, 10)
    history.add({"billing": GroupLag(5, 1, 2)})
    assert history.of("billing") == [None]


def test_a_group_that_is_gone_leaves_nothing_behind() -> None:
    history = LagHistory(3, 10)
    history.add(lags(billing=1))
    history.add({})
    assert history.of("billing") is None
    history.add(lags(billing=2))
    assert history.of("billing") == [None, None, 2]


def test_of_too_many_groups_the_wanted_and_the_largest_are_kept() -> None:
    history = LagHistory(3, 2)
    history.add(lags(small=1, large=3, middle=2, wanted=0), ["wanted"])
    assert len(history) == 2
    assert history.of("large") == [3]
    assert history.of("wanted") == [0]
