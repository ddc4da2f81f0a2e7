"""Where the time goes: CPU seconds by group of processes, from /proc.

Everything is one machine here, so wall-clock time says who waited and CPU seconds say who worked. The JVM's threads are
told apart by their names, because its compiler warms up for a long time and has nothing to do with either side's code.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

JVM: Final = "Spark's JVM"
COMPILER: Final = "of it compiler and garbage collector"
WORKERS: Final = "Python workers"
DRIVER: Final = "Python driver"
BROKER: Final = "broker"
ALL: Final = "all"

_TICKS: Final = 100
"""Of a second; what Linux counts CPU time in, on every platform that matters here."""
_HOUSEKEEPING: Final = ("C1 Compiler", "C2 Compiler", "GC Thread", "G1 ", "VM Thread")


@dataclass(frozen=True, slots=True)
class Meter:
    """Of one Spark session and one broker."""

    jvm: int
    broker: int

    def read(self) -> dict[str, float]:
        """Seconds so far."""
        jvm = psutil.Process(self.jvm)
        seconds = {
            JVM: _own(jvm),
            COMPILER: self._housekeeping(),
            DRIVER: _own(psutil.Process()),
            BROKER: _own(psutil.Process(self.broker)),
            WORKERS: 0.0,
        }
        for worker in jvm.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                times = worker.cpu_times()
                # Workers that have ended are counted with the daemon that has waited for them.
                seconds[WORKERS] += times.user + times.system + times.children_user + times.children_system
        seconds[ALL] = seconds[JVM] + seconds[WORKERS] + seconds[DRIVER] + seconds[BROKER]
        return seconds

    def _housekeeping(self) -> float:
        ticks = 0
        for thread in Path(f"/proc/{self.jvm}/task").iterdir():
            with suppress(OSError):
                name, _, rest = (thread / "stat").read_text().partition(" (")[2].rpartition(") ")
                if name.startswith(_HOUSEKEEPING):
                    user, system = rest.split()[11:13]
                    ticks += int(user) + int(system)
        return ticks / _TICKS


def since(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    return {group: now[group] - before[group] for group in now}


def _own(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
