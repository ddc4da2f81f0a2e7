"""Resets of a group's committed offsets: the destinations that a person may name, and the offsets that they mean.

The command line and the console share these rules. A reset moves the offsets of one topic, of a group that has no
members. An offset outside the log is refused: consumers would start wherever their reset policy says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.types import EARLIEST, LATEST, Offset

EXAMPLE_TIME: Final = "2026-11-15T08:00"
_DIGITS: Final = re.compile("[0-9]{1,18}")
"""Offsets have 63 bits: all numbers of 18 digits fit, and nobody needs a longer one."""


class ResetKind(StrEnum):
    TIME = "time"
    """The first record that is not older; also the ends of the log, by EARLIEST and LATEST."""
    OFFSET = "offset"
    SHIFT = "shift"
    """Forward from the committed offset, or backward if negative."""


class ResetTarget(NamedTuple):
    kind: ResetKind
    value: int


class LogRange(NamedTuple):
    start: Offset
    end: Offset


def parse_target(text: str) -> ResetTarget:
    """Return the destination that `fencepost group reset --to` names."""
    if text in ("earliest", "latest"):
        return ResetTarget(ResetKind.TIME, EARLIEST if text == "earliest" else LATEST)
    if _DIGITS.fullmatch(text):
        return ResetTarget(ResetKind.OFFSET, int(text))
    try:
        time_ms = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        time_ms = -1
    if time_ms < 0:  # before 1970, where ListOffsets has its special values
        raise ConfigError(f"{text}: expected earliest, latest, an offset, or a time such as {EXAMPLE_TIME}")
    return ResetTarget(ResetKind.TIME, time_ms)


def parse_shift(text: str) -> ResetTarget:
    """Return the destination that is so many offsets away: 100, +100 or -100."""
    if not _DIGITS.fullmatch(text[1:] if text[:1] in ("+", "-") else text):
        raise ConfigError(f"{text}: expected a number of offsets such as 100 or -100")
    return ResetTarget(ResetKind.SHIFT, int(text))


def at_time(found: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return the new offsets by partition, given the answers of ListOffsets to a time. A time that is newer than every
    record (−1) means the end."""
    return {index: offset if offset >= 0 else ends[index] for index, offset in found.items()}


def shifted(before: Mapping[int, int | None], by: int, ranges: Mapping[int, LogRange]) -> dict[int, int]:
    """Return the new offsets by partition, not beyond the ends of the log. Partitions without a committed offset have
    nothing to shift."""
    return {
        index: min(max(offset + by, ranges[index].start), ranges[index].end)
        for index, offset in before.items()
        if offset is not None
    }


def check_within(topic: str, offsets: Mapping[int, int], ranges: Mapping[int, LogRange]) -> None:
    """Raise OFFSET_OUT_OF_RANGE if an offset is outside the log of its partition."""
    for index, offset in offsets.items():
        start, end = ranges[index]
        if not start <= offset <= end:
            raise ServerError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"{topic}-{index} has offsets {start} to {end}, {offset} is outside"
            )


def check_no_members(group: str, state: str, members: int) -> None:
    """Raise NON_EMPTY_GROUP unless the group's state says that it has no members."""
    if state not in ("Empty", "Dead"):
        raise ServerError(
            ErrorCode.NON_EMPTY_GROUP,
            f"group {group!r} is {state} with {members} member(s): "
            "stop its consumers first, they would go on from their current offsets",
        )
