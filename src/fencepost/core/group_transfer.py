"""The rule for a group's committed offset on the target of a migration: it never moves back by itself.

A migration may run again after consumers have started on the target. Their progress there must not be undone, or they
would read records twice. An offset that is lower on the target is raised: the group has read further on the source.
"""

from __future__ import annotations

from enum import Enum


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
