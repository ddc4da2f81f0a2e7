"""CPU time and memory that a client needed."""

from __future__ import annotations

import gc
import resource
import time

import psutil


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


def resident_mib() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / (1 << 20)
