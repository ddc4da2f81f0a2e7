"""A copy whose records keep their offsets: the steps, applied to a log, give back every offset."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.migration import CopyStep, GapStep, HeadStep, OffsetTransfer, RecordsStep, copy_steps, transfer

pytestmark = pytest.mark.unit


class Log:
    """A target: the committed records by their offsets, its start and its end."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.start = self.end = 0

    def apply(self, step: CopyStep, *, killed_after: int | None = None) -> None:
        """Carry out a step; or its first requests, and what the next run finds of them."""
        if isinstance(step, RecordsStep):
            stop = step.stop if killed_after is None else min(step.stop, step.start + killed_after)
            for offset in range(step.start, stop):
                self.committed[self.end] = offset
                self.end += 1
        elif isinstance(step, GapStep):
            # RecordsStep of an open transaction are aborted, which takes one offset more.
            self.end += step.offsets if killed_after is None else min(step.offsets, killed_after + 1)
        else:
            assert not self.committed
            if killed_after is None or killed_after >= step.offsets:
                self.end += step.offsets
                self.start = self.end
            else:
                self.end += killed_after


@st.composite
def sources(draw: st.DrawFn) -> tuple[int, list[int], int]:
    """Draw where a log starts, the offsets of its records, and where it ends."""
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 7]), max_size=30))
    first = draw(st.sampled_from([0, 0, 1, 2, 50]))
    offsets, at = [], first
    for gap in gaps:
        at += gap
        offsets.append(at)
        at += 1
    return first, offsets, at + draw(st.sampled_from([0, 1, 2, 5]))


def runs(offsets: Iterable[int]) -> list[RecordsStep]:
    """The offsets as runs without a gap, of at most four records: batches are bounded, too."""
    found: list[RecordsStep] = []
    for offset in offsets:
        if found and found[-1].stop == offset and offset - found[-1].start < 4:
            found[-1] = RecordsStep(found[-1].start, offset + 1)
        else:
            found.append(RecordsStep(offset, offset + 1))
    return found


@given(sources())
def test_every_record_keeps_its_offset(source: tuple[int, list[int], int]) -> None:
    first, offsets, end = source
    log = Log()
    for step in copy_steps(0, first, runs(offsets), end):
        log.apply(step)
    assert log.committed == {offset: offset for offset in offsets}
    assert (log.start, log.end) == (first, end)


@given(sources(), st.data())
def test_a_copy_goes_on_wherever_it_was_killed(source: tuple[int, list[int], int], data: st.DataObject) -> None:
    first, offsets, end = source
    log = Log()
    for _ in range(data.draw(st.integers(1, 4))):
        steps = list(copy_steps(log.end, first, runs(each for each in offsets if each >= log.end), end))
        whole = data.draw(st.integers(0, len(steps)))
        for step in steps[:whole]:
            log.apply(step)
        for step in steps[whole : whole + 1]:
            log.apply(step, killed_after=data.draw(st.integers(0, 8)))
    at = log.end
    for step in copy_steps(at, first, runs(each for each in offsets if each >= at), end):
        log.apply(step)
    assert log.committed == {offset: offset for offset in offsets}
    assert log.end == end


def test_a_plain_log_needs_no_transaction() -> None:
    assert list(copy_steps(0, 0, [RecordsStep(0, 2), RecordsStep(2, 3)], 3)) == [RecordsStep(0, 2), RecordsStep(2, 3)]


def test_a_finished_copy_has_no_steps() -> None:
    assert list(copy_steps(3, 0, [], 3)) == []


def test_each_kind_of_gap_has_its_step() -> None:
    assert list(copy_steps(0, 4, [RecordsStep(4, 6), RecordsStep(7, 8), RecordsStep(10, 11)], 12)) == [
        HeadStep(4), RecordsStep(4, 6), GapStep(1), RecordsStep(7, 8), GapStep(2), RecordsStep(10, 11), GapStep(1),
    ]  # fmt: skip
    assert list(copy_steps(0, 4, [RecordsStep(9, 10)], 10)) == [HeadStep(4), GapStep(5), RecordsStep(9, 10)]
    assert list(copy_steps(5, 0, [RecordsStep(6, 7)], 7)) == [GapStep(1), RecordsStep(6, 7)]


def test_records_behind_the_targets_end_are_an_error() -> None:
    with pytest.raises(ValueError, match="offset 2 is behind 3"):
        list(copy_steps(3, 0, [RecordsStep(2, 4)], 4))


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
