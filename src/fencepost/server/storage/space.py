"""Room on the disk: new records are refused before it is full, and a reserve pays for what makes room again.

Two lines of defence, because deleting needs room, too: a commit of the metadata, a snapshot of a log.

- *The watermark* (`min_free_bytes`). Below it Produce is refused with KAFKA_STORAGE_ERROR, which clients take for
  "not persisted, try again": they go on by themselves when there is room. Metadata still has all that is left.
- *The reserve* (`reserve_bytes`), a file in the data directory. Others may fill the disk as well. Then the reserve is
  given back when somebody deletes topics or records, or retention does, and made anew when there is room.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.clock import Clock
from fencepost.errors import FencepostError, StorageError
from fencepost.log.files import Files

logger = logging.getLogger(__name__)

NAME: Final = "reserve"
_SECONDS_BETWEEN_LOOKS: Final = 1.0
"""Others may fill the disk meanwhile."""
_WATERMARK_SHARE: Final = 20
_RESERVE_SHARE: Final = 50
"""Of a small file system at most a 20th and a 50th are kept free."""
_NAMED: Final = 5
"""Topics that are named when there is no room."""


class TopicSize(NamedTuple):
    topic: str
    size: int


class Space:
    """`admits` is the loop's; the rest may be called by any thread."""

    def __init__(self, directory: Path, files: Files, clock: Clock, *, min_free: int, reserve: int) -> None:
        self._directory = str(directory)
        self._reserve_path = f"{directory}/{NAME}"
        self._files = files
        self._clock = clock
        self._min_free = min_free
        self._reserve = reserve
        self._budget = 0
        self._look_at = 0.0
        self.is_low = False
        """Was there too little room for new records, the last time somebody looked?"""

    def admits(self, size: int) -> bool:
        """May so many bytes of new records be written? Looks at the disk only now and then: between two looks what is
        written is counted."""
        self._budget -= size
        if self._budget >= 0 and self._clock.monotonic() < self._look_at:
            return True
        self.look(size)
        return not self.is_low

    def look(self, size: int = 0) -> int:
        """Measures; says how many bytes are free."""
        try:
            room = self._files.room(self._directory)
        except OSError as error:
            logger.warning("cannot tell how much room there is in %s: %s", self._directory, error)
            self._budget, self.is_low = 1 << 20, False
            self._look_at = self._clock.monotonic() + _SECONDS_BETWEEN_LOOKS
            return 0
        self._budget = room.free - min(self._min_free, room.total // _WATERMARK_SHARE) - size
        self._look_at = self._clock.monotonic() + _SECONDS_BETWEEN_LOOKS
        self.is_low = self._budget < 0
        return room.free

    def refusal(self, largest: Iterable[TopicSize] = ()) -> StorageError:
        """What to say while there is too little room, and what to free."""
        room = self._files.room(self._directory)
        floor = min(self._min_free, room.total // _WATERMARK_SHARE)
        named = ", ".join(f"{topic} ({_text(size)})" for topic, size in largest)
        return StorageError(
            f"the file system of {self._directory} has {_text(room.free)} free, and {_text(floor)} are kept free "
            "(min_free_bytes): new records are refused. Delete topics or records, shorten retention, or remove other "
            "files there" + (f"; the largest topics: {named}" if named else "")
        )

    # -- the reserve ------------------------------------------------------------------------------------------

    def keep_reserve(self) -> None:
        """Makes the reserve if it is missing and there is room for it above the watermark."""
        try:
            room = self._files.room(self._directory)
            size = min(self._reserve, room.total // _RESERVE_SHARE)
            floor = min(self._min_free, room.total // _WATERMARK_SHARE)
            if size and room.free >= size + floor and not self._files.exists(self._reserve_path):
                self._files.allocate(self._reserve_path, size)
        except OSError as error:
            logger.warning("cannot keep %s: %s", self._reserve_path, error)
            self.give_back()

    def give_back(self) -> bool:
        """Removes the reserve, so that what it took is free; False if it is gone already."""
        try:
            self._files.remove(self._reserve_path)
        except OSError:
            return False
        logger.warning("the disk is full: %s is given back, so that something can be deleted", self._reserve_path)
        return True


def is_full(error: BaseException) -> bool:
    """Did this fail because there is no room?"""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__ if isinstance(cause, FencepostError) else None
    return False


def largest(folders: Iterable[tuple[str, Path]]) -> list[TopicSize]:
    """The topics that take most room, by their folders. Waits for the disk."""
    sizes = []
    for topic, folder in folders:
        try:
            size = sum(file.stat().st_size for file in folder.glob("*/*"))
        except OSError:
            continue  # on its way out
        sizes.append(TopicSize(topic, size))
    return sorted(sizes, key=lambda found: -found.size)[:_NAMED]


def _text(size: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"
