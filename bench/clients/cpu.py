"""CPU time that a client needed."""

from __future__ import annotations

import resource
import time


class Stopwatch:
    """Seconds and CPU seconds since it was made; `children` counts the processes that were started and have ended."""

    def __init__(self, *, children: bool = False) -> None:
        self._who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
        self._cpu = self._used()
        self._began = time.perf_counter()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._began, self._used() - self._cpu

    def _used(self) -> float:
        usage = resource.getrusage(self._who)
        return usage.ru_utime + usage.ru_stime
