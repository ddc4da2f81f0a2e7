"""The steps that copy a partition to an empty one so that every record keeps its offset.

A log has offsets without a record that a reader of committed records sees: markers, aborted records, records that
compaction or retention removed. A copy cannot leave an offset out, but it can use it up:

Head(n)     the n offsets before the log's start: n records, which are then deleted (DeleteRecords)
Seal        one offset behind a record: the record is written in a transaction of its own, whose marker takes the offset
Skip(n)     n > 1 offsets: an aborted transaction of n - 1 records, and its marker

Everything else is written without a transaction. So committed offsets, stored positions and Spark's checkpoints stay
valid on the target as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias


class PlainWrite(NamedTuple):
    """Write the record of this offset."""

    offset: int


class Seal(NamedTuple):
    """Write the record of this offset in a transaction, and commit it."""

    offset: int


class Skip(NamedTuple):
    """Use up offsets with an aborted transaction."""

    offsets: int


class Head(NamedTuple):
    """Use up the first offsets with records that are deleted."""

    offsets: int


CopyStep: TypeAlias = PlainWrite | Seal | Skip | Head


class OffsetOutOfReach(ValueError):
    """A single offset must be skipped, and there is no record before it that this run could seal."""


def copy_steps(at: int, first: int, offsets: Iterable[int], end: int) -> Iterator[CopyStep]:
    """Yield the steps for a target that ends at `at`, of a source that starts at `first` and ends at `end`, whose
    records from `at` on have these `offsets`. A step needs the record behind its own, so it comes one record later."""
    held: int | None = None
    position = at
    in_head = at <= first
    for offset in chain(offsets, [end]):
        gap = offset - position
        if gap < 0:
            raise ValueError(f"offset {offset} is behind {position}")
        if gap > 0 and in_head and held is None:
            # A single offset behind the start cannot be skipped, so the target starts behind it.
            head = first - position if gap - (first - position) != 1 else gap
            if head:
                yield Head(head)
            if gap > head:
                yield Skip(gap - head)
        elif gap == 1 and held is None:
            raise OffsetOutOfReach(f"offset {position} cannot be skipped")
        elif gap == 1 and held is not None:
            yield Seal(held)
        else:
            if held is not None:
                yield PlainWrite(held)
            if gap > 1:
                yield Skip(gap)
        held, position, in_head = offset, offset + 1, False
