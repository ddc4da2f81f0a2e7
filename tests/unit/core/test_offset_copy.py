"""A copy whose records keep their offsets: the steps, applied to a log, give back every offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.offset_copy import CopyStep, Head, OffsetOutOfReach, PlainWrite, Seal, Skip, copy_steps

pytestmark = pytest.mark.unit


class Log:
    """A target: the committed records by their offsets, and the end."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.start = self.end = 0

    def apply(self, step: CopyStep) -> None:
        if isinstance(step, PlainWrite | Seal):
            self.committed[self.end] = step.offset
            self.end += 1 if isinstance(step, PlainWrite) else 2
        elif isinstance(step, Skip):
            assert step.offsets > 1, "an aborted transaction has a record and a marker"
            self.end += step.offsets
        else:
            assert not self.committed
            self.end += step.offsets
            self.start = self.end


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


@given(sources())
def test_every_record_keeps_its_offset(source: tuple[int, list[int], int]) -> None:
    first, offsets, end = source
    log = Log()
    for step in copy_steps(0, first, offsets, end):
        log.apply(step)
    assert log.committed == {offset: offset for offset in offsets}
    assert log.end == end
    assert log.start in (first, first + 1)


@given(sources(), st.data())
def test_a_copy_goes_on_behind_any_whole_step(source: tuple[int, list[int], int], data: st.DataObject) -> None:
    """It may only get stuck in front of a single offset whose record an earlier run has written without sealing it."""
    first, offsets, end = source
    steps = list(copy_steps(0, first, offsets, end))
    log = Log()
    for step in steps[: data.draw(st.integers(0, len(steps)))]:
        log.apply(step)
    at = log.end
    try:
        for step in copy_steps(at, first, [each for each in offsets if each >= at], end):
            log.apply(step)
    except OffsetOutOfReach:
        raise AssertionError("whole steps never end in front of a single offset") from None
    assert log.committed == {offset: offset for offset in offsets}
    assert log.end == end
    assert log.start in (first, first + 1)


def test_an_offset_that_cannot_be_skipped_is_named() -> None:
    with pytest.raises(OffsetOutOfReach, match="offset 5 cannot be skipped"):
        list(copy_steps(5, 0, [6, 7], 8))


def test_a_plain_log_needs_no_transaction() -> None:
    assert list(copy_steps(0, 0, range(3), 3)) == [PlainWrite(0), PlainWrite(1), PlainWrite(2)]


def test_each_kind_of_gap_has_its_step() -> None:
    steps = list(copy_steps(0, 4, [4, 5, 7, 10], 11))
    assert list(copy_steps(0, 4, [9], 10)) == [Head(4), Skip(5), PlainWrite(9)]
    assert list(copy_steps(0, 4, [5], 6)) == [Head(5), PlainWrite(5)]
    assert list(copy_steps(0, 0, [2], 4)) == [Skip(2), Seal(2)]
    assert steps == [Head(4), PlainWrite(4), Seal(5), PlainWrite(7), Skip(2), PlainWrite(10)]
