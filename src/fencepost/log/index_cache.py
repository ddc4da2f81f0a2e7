"""A cache that limits the indexes of sealed segments in memory.

The index of an active segment is always in memory. Those of sealed segments are needed when a consumer starts in the
past. The cache keeps a few over all logs, so that memory does not grow with the data on disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.log.segment import Segment

DEFAULT_LIMIT: Final = 16


class IndexCache:
    """Sealed segments whose index is in memory, least recently used first. Any thread may use it."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._segments)

    def use(self, segment: Segment) -> None:
        """Note that the segment's index is used, and drop the least recently used one if there are too many. A thread
        that is using the dropped index keeps its reference."""
        with self._lock:
            self._segments[segment] = None
            self._segments.move_to_end(segment)
            if len(self._segments) > self._limit:
                self._segments.popitem(last=False)[0].index = None

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._segments.pop(segment, None)
