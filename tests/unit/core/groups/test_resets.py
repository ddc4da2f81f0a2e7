"""Resets of committed offsets: where they lead, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.groups.resets import LogRange, at_time, check_no_members, check_within, shifted
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Offset

pytestmark = pytest.mark.unit

OFFSETS = st.integers(0, 2**40)


@given(
    st.lists(st.tuples(OFFSETS, OFFSETS, st.one_of(st.none(), OFFSETS)), min_size=1, max_size=5),
    st.integers(-(2**41), 2**41),
)
def test_a_shift_stays_within_the_log_and_leaves_out_what_was_not_committed(
    drawn: list[tuple[int, int, int | None]], by: int
) -> None:
    ranges = {at: LogRange(Offset(min(a, b)), Offset(max(a, b))) for at, (a, b, _) in enumerate(drawn)}
    before = {at: committed for at, (_, _, committed) in enumerate(drawn)}
    after = shifted(before, by, ranges)
    check_within("orders", after, ranges)
    assert after.keys() == {at for at, offset in before.items() if offset is not None}
    for at, offset in after.items():
        wanted = (before[at] or 0) + by
        assert offset == wanted or offset in ranges[at]
        assert offset == wanted or not ranges[at].start <= wanted <= ranges[at].end


def test_a_time_after_every_record_means_the_end() -> None:
    assert at_time({0: 5, 1: -1}, {0: 9, 1: 7}) == {0: 5, 1: 7}


@pytest.mark.parametrize("offset", [1, 10])
def test_an_offset_outside_the_log_is_refused(offset: int) -> None:
    with pytest.raises(ServerError, match=f"orders-3 has offsets 2 to 9, {offset} is outside"):
        check_within("orders", {3: offset}, {3: LogRange(Offset(2), Offset(9))})


@pytest.mark.parametrize("offset", [2, 9])
def test_the_ends_of_the_log_are_not_outside(offset: int) -> None:
    check_within("orders", {3: offset}, {3: LogRange(Offset(2), Offset(9))})


def test_a_group_with_members_is_refused() -> None:
    check_no_members("billing", "Empty", 0)
    with pytest.raises(ServerError, match="'billing' is PreparingRebalance with 2 member") as caught:
        check_no_members("billing", "PreparingRebalance", 2)
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
