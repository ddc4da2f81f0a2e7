"""Numbers, sizes and times as a person reads them; what the command line prints is printed alike."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def number(value: float | None) -> str:
    """Write a count with a comma at each thousand; "-" if it is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def counted(count: int, word: str) -> str:
    """Write a count with its noun: 1 group, 2 groups."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float | None) -> str:
    """Write a number of bytes in the largest unit that leaves at least 1."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count:.0f} B"
    power = min(int(math.log2(count)) // 10, len(_UNITS) - 1)
    return f"{count / 1024**power:.1f} {_UNITS[power]}"


def span(seconds: float | None) -> str:
    """Write a duration in one or two units: 3 min, 2 h 5 min."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    left, words = int(seconds), []
    for length, unit in _SPANS:
        count, left = divmod(left, length)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words[:2])


def moment(timestamp_ms: int | None) -> str:
    """Write a time as the command line does; "-" for none, or for the -1 that means never."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (OverflowError, OSError, ValueError):  # a client may write any timestamp
        return f"{timestamp_ms} ms"
    return when.isoformat(sep=" ", timespec="milliseconds")


FILTERS: Final = {"number": number, "counted": counted, "size": size, "span": span, "moment": moment}
