"""The pace of a background job that shares a disk with somebody more important.

The job cannot see who else uses the disk, but it sees how long its own writes take. Its fastest writes were alone. The
slower the others are than these, the more of them were waits for somebody else, and the longer the job pauses: alone it
does not pause at all, and on a disk that is always busy it still works for a fifth of the time.
"""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 4.0
"""Pause after each second of work when nearly all of it was waiting: then the job works for a fifth of the time."""
_TOLERANCE: Final = 1.2
"""Writes this much slower than the fastest were alone too."""


class BackupPace:
    """Decides how long the job pauses after each stretch of work."""

    def __init__(self) -> None:
        self._fastest = float("inf")
        self._contention = 0.0

    @property
    def contention(self) -> float:
        """The share of the last stretch's writes that was waiting for others, from 0 to 1."""
        return self._contention

    def wrote(self, size: int, seconds: float) -> None:
        """Note that writes of `size` bytes took so long."""
        if size <= 0 or seconds <= 0:
            return
        per_byte = seconds / size
        self._fastest = min(self._fastest, per_byte)
        self._contention = max(0.0, 1 - _TOLERANCE * self._fastest / per_byte)

    def pause_after(self, seconds: float) -> float:
        """Return how long to pause after so many seconds of work."""
        return _LONGEST * self._contention * seconds
