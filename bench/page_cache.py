"""A full page cache, as on a machine that has been up for a day.

Some virtual machines hand free memory back to their host (`page_reporting`) and fetch it again page by page. Writing
to a log then costs up to five times as much, on every broker, and in one run more than in the next. Where memory is
full of clean pages, a broker gets pages that the machine still has. So before each topic, what is free is taken up by
the pages of a sparse file, which the kernel drops as soon as somebody needs memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

_REPORTING: Final = Path("/sys/module/page_reporting")
_MEMORY: Final = Path("/proc/meminfo")
_LITTLE_MIB: Final = 200
"""Free memory that is left alone: the kernel itself keeps about as much."""
_STEP: Final = 4 << 20
_STEPS_PER_LOOK: Final = 8
_MORE_BYTES: Final = 1 << 30
"""Read beyond that. The memory which stays free is then single pages that were dropped just now, not large pieces that
are back with the host."""
_FILE_BYTES: Final = 8 << 40


class Filler:
    """A sparse file that is read once, from its beginning to its end, and takes no room on the disk."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._file: Final = os.dup(file.fileno())
        os.ftruncate(self._file, _FILE_BYTES)
        # Read-ahead would bring large pages, and a large page that is dropped goes back to the host.
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)
        self._buffer: Final = bytearray(_STEP)
        self._position = 0

    def fill(self) -> None:
        if not self._position:
            print("filling the page cache, since this machine hands free memory back: a minute or two", file=sys.stderr)
        most = self._position + 2 * _mebibytes("MemTotal") * (1 << 20)
        while _mebibytes("MemFree") > _LITTLE_MIB and self._position < most:
            self._read(_STEPS_PER_LOOK)
        self._read(_MORE_BYTES // _STEP)

    def _read(self, steps: int) -> None:
        for _ in range(steps):
            os.preadv(self._file, [self._buffer], self._position)
            self._position += _STEP


def hands_memory_back() -> bool:
    """Tell whether this machine gives free memory to its host, so that new pages are slow."""
    return _REPORTING.exists()


def fill() -> None:
    """Leave no free memory, where free memory is slow. The first call takes a minute or two, each later one about a
    second."""
    if hands_memory_back():
        _filler().fill()


@cache
def _filler() -> Filler:
    return Filler()


def _mebibytes(name: str) -> int:
    [line] = [line for line in _MEMORY.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) >> 10
