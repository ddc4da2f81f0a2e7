"""The rules of a migration: the steps that copy a partition so that every record keeps its offset, and which committed
offsets of a group are set on the target.

A log has offsets without a record that a reader of committed records sees: markers, aborted records, records that
compaction or retention removed. A copy cannot leave an offset out, but it can use it up:

HeadStep(n)   the n offsets before the log's start: n records, which are then deleted (DeleteRecords)
GapStep(n)    n offsets between or behind records: n markers without a record, or, if n is large, an aborted transaction
              of n - 1 records, and its marker

All records are written outside of transactions. So committed offsets, stored positions and Spark's checkpoints stay
valid on the target as they are.

Every step can be cut off anywhere: a transaction that a killed copy left open is aborted, and its marker uses up one
more offset of the same gap. What is left is a smaller gap, and the copy goes on from the target's end.

A group's committed offset never moves back by itself. A migration may run again after consumers have started on the
target. Their progress there must not be undone, or they would read records twice. An offset that is lower on the target
is raised: the group has read further on the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import NamedTuple, TypeAlias


class RecordsStep(NamedTuple):
    """Write the records of the offsets from `start` to before `stop`."""

    start: int
    stop: int


class GapStep(NamedTuple):
    """Use up offsets that no reader may see."""

    offsets: int


class HeadStep(NamedTuple):
    """Use up the first offsets with records that are deleted."""

    offsets: int


CopyStep: TypeAlias = RecordsStep | GapStep | HeadStep


def copy_steps(at: int, first: int, runs: Iterable[RecordsStep], end: int) -> Iterator[CopyStep]:
    """Yield the steps for a target that ends at `at`, of a source that starts at `first` and ends at `end`, whose
    records from `at` on are these `runs` of offsets without a gap."""
    position = at
    if at < first:
        yield HeadStep(first - at)
        position = first
    for run in chain(runs, [RecordsStep(max(end, position), max(end, position))]):
        if run.start < position:
            raise ValueError(f"offset {run.start} is behind {position}")
        if run.start > position:
            yield GapStep(run.start - position)
        if run.stop > run.start:
            yield run
        position = run.stop


class OffsetTransfer(Enum):
    """The fate of one committed offset."""

    SET = "set"
    SAME = "same"
    AHEAD = "ahead"
    """The target's is higher, and stays: consumers have gone on there."""
    BUSY = "busy"
    """It should be set, but the group has members on the target, which would not notice."""


def transfer(source: int, target: int | None, *, has_members: bool, set_back: bool) -> OffsetTransfer:
    """Decide about an offset that is `source` on one side and `target` (None: not committed) on the other.

    `set_back`: the user wants the source's offset even if it is lower."""
    if target == source:
        return OffsetTransfer.SAME
    if target is not None and target > source and not set_back:
        return OffsetTransfer.AHEAD
    return OffsetTransfer.BUSY if has_members else OffsetTransfer.SET
