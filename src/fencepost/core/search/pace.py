"""The pace of a search: it works in short slices, and rests in between while the server is busy with other things."""

from __future__ import annotations

from typing import Final

WINDOW_SECONDS: Final = 0.02
"""How often the load is measured."""
_BUSY: Final = 0.05
"""Share of a core that the rest of the server uses, above which it counts as busy. It is small, because producers on
the same machine need many times the CPU that their requests need here."""
_SHARE_IF_BUSY: Final = 0.03
_SHARE_IF_IDLE: Final = 0.8
_LONGEST_REST: Final = 0.25


class SearchPace:
    """Tells a search how long to rest. Times are in seconds, from any start."""

    def __init__(self, wall: float, process: float, thread: float) -> None:
        self._at = wall, process, thread
        self._share = _SHARE_IF_BUSY  # until the load is known

    def resume(self, wall: float, process: float, thread: float) -> None:
        """Begin to measure anew, perhaps in another thread; the last measurement counts until the next."""
        self._at = wall, process, thread

    def measure(self, wall: float, process: float, thread: float) -> None:
        """Note the clocks: the wall's, the CPU time of the process and that of the search's thread."""
        elapsed = wall - self._at[0]
        if elapsed < WINDOW_SECONDS:
            return
        others = (process - self._at[1]) - (thread - self._at[2])
        self._share = _SHARE_IF_BUSY if others > _BUSY * elapsed else _SHARE_IF_IDLE
        self._at = wall, process, thread

    def rest_after(self, worked: float) -> float:
        """Return how long to rest after a slice of this length."""
        return min(max(worked, 0.0) * (1 / self._share - 1), _LONGEST_REST)
