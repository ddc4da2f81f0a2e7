"""The pause before the next attempt."""

from __future__ import annotations

_MOST_DOUBLINGS = 16


def backoff(first: float, longest: float, failures: int) -> float:
    """Return the pause after `failures` failures in a row: `first`, then doubled each time, at most `longest`."""
    return float(min(longest, first * 2 ** min(failures - 1, _MOST_DOUBLINGS)))
