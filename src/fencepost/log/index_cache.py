"""How many indexes of sealed segments stay in memory.

The index of an active segment is always there. Those of sealed ones are needed when a consumer starts somewhere in the
past; a few are kept, whichever logs they belong to, so that memory does not grow with the data on the disk.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fencepost.log.segment import Segment

DEFAULT_LIMIT: Final = 16


class IndexCache:
    """Sealed segments whose index is in memory, least recently used first. Any thread."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._segments)

    def use(self, segment: Segment) -> None:
        """The segment's index was needed. Drops the one that was not needed for longest, if there are too many; whoever
        is just using that one keeps it until he is done."""
        with self._lock:
            self._segments[segment] = None
            self._segments.move_to_end(segment)
            if len(self._segments) > self._limit:
                self._segments.popitem(last=False)[0].index = None

    def forget(self, segment: Segment) -> None:
        with self._lock:
            self._segments.pop(segment, None)
