"""A group's offset on the target of a migration: raised, kept, never moved back unless the user says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.group_transfer import OffsetTransfer, transfer

pytestmark = pytest.mark.unit

offsets = st.integers(0, 5)


@given(st.lists(st.tuples(offsets, st.none() | offsets, st.booleans()), max_size=20))
def test_no_run_of_migrations_moves_a_group_back(runs: list[tuple[int, int | None, bool]]) -> None:
    """Between two runs the group commits at the source, and perhaps at the target."""
    target: int | None = None
    for source, commit, has_members in runs:
        target = commit if commit is not None else target
        before = target
        if transfer(source, target, has_members=has_members, set_back=False) is OffsetTransfer.SET:
            target = source
        assert before is None or (target is not None and target >= before)


@given(offsets, st.none() | offsets, st.booleans())
def test_told_so_the_sources_offset_counts(source: int, target: int | None, has_members: bool) -> None:
    decision = transfer(source, target, has_members=has_members, set_back=True)
    if target == source:
        assert decision is OffsetTransfer.SAME
    else:
        assert decision is (OffsetTransfer.BUSY if has_members else OffsetTransfer.SET)


@pytest.mark.parametrize(
    ("source", "target", "has_members", "expected"),
    [
        (5, None, False, OffsetTransfer.SET),
        (5, None, True, OffsetTransfer.BUSY),
        (5, 3, False, OffsetTransfer.SET),
        (5, 3, True, OffsetTransfer.BUSY),
        (5, 5, True, OffsetTransfer.SAME),
        (5, 7, False, OffsetTransfer.AHEAD),
        (5, 7, True, OffsetTransfer.AHEAD),
    ],
)
def test_each_case(source: int, target: int | None, has_members: bool, expected: OffsetTransfer) -> None:
    assert transfer(source, target, has_members=has_members, set_back=False) is expected
