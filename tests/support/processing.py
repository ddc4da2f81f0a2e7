"""Random histories of processors: workers that start, end, die, sleep and fail, while records are written.

The promise knows only the public interface: whatever happens to the workers, each record that was written is in the
target exactly once, as a stranger counts that reads committed records.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from fencepost import Admin, Producer
from fencepost.core.groups.membership import GroupProtocol
from tests.support.committed import committed_values
from tests.support.process import Child

_WORKER: Final = Path(__file__).parents[1] / "workers" / "process_worker.py"
_PATIENCE: Final = 120.0
_TICK: Final = 0.02


class World(NamedTuple):
    servers: str
    protocol: GroupProtocol
    session: float
    """Seconds after which a silent worker is removed from the group."""
    processing_timeout: float
    partitions: int = 4
    workers: int = 3
    batch_records: int = 10
    work: float = 0.06
    mishaps: float = 0.003
    most_records: int = 100
    """Written between two events."""
    without: str | None = None


class Counted(NamedTuple):
    missing: int
    repeated: int
    rebalances: int
    """The number of times that a worker joined, left, was killed, or slept for longer than its session."""


class History:
    def __init__(self, world: World, name: str, chance: random.Random, logs: Path) -> None:
        self._world = world
        self._chance = chance
        self._logs = logs
        self._source, self._target, self._group = f"{name}-source", f"{name}-target", f"{name}-group"
        self._running: list[Child] = []
        self._asleep: list[tuple[float, Child]] = []
        self._started = 0
        self._written = 0
        self._rebalances = 0

    def run(self, rebalances: int) -> Counted:
        world = self._world
        with Admin(world.servers) as admin, Producer(world.servers) as producer:
            admin.create_topic(self._source, world.partitions)
            admin.create_topic(self._target, 2)
            try:
                self._start()
                while self._rebalances < rebalances:
                    self._write(producer)
                    self._act()
                    self._wake()
                    time.sleep(self._chance.random() * world.session)
                return self._settle(admin, producer)
            finally:
                for child in [*self._running, *(child for _, child in self._asleep)]:
                    child.kill()

    def _write(self, producer: Producer) -> None:
        for _ in range(self._chance.randrange(self._world.most_records)):
            producer.send(self._source, str(self._written), partition=self._written % self._world.partitions)
            self._written += 1

    def _act(self) -> None:
        ready = [
            child for child in self._running if _is_ready(child)
        ]  # most have work at hand, and one that starts none
        child = self._chance.choice(ready or self._running) if self._running else None
        count = len(self._running) + len(self._asleep)
        match self._chance.choice(["start", "start", "kill", "sleep", "sleep", "end", "nothing"]):
            case "start" if count < self._world.workers:
                self._start()
            case "kill" if child is not None:
                child.kill()
                self._running.remove(child)
                self._rebalances += 1
            case "sleep" if child is not None:
                os.kill(child.pid, signal.SIGSTOP)
                self._running.remove(child)
                nap = self._chance.choice([0.5, 1.6]) * self._world.session
                self._asleep.append((time.monotonic() + nap, child))
                self._rebalances += nap > self._world.session
            case "end" if child is not None and _is_ready(child):
                os.kill(child.pid, signal.SIGTERM)
                self._running.remove(child)
                assert child.wait() == 0, f"exit code {child.exit_code}: {child.output()}"
                self._rebalances += 1
            case _:
                pass
        for each in self._running:
            assert each.exit_code is None, f"a worker has ended by itself: {each.output()}"

    def _start(self) -> None:
        self._started += 1
        self._rebalances += 1
        order: dict[str, Any] = {
            **self._world._asdict(),
            "source": self._source,
            "target": self._target,
            "group": self._group,
            "is_async": self._chance.random() < 0.3,
        }
        log = self._logs / f"{self._group}-{self._started}.txt"
        self._running.append(Child([sys.executable, str(_WORKER), json.dumps(order)], log=log))

    def _wake(self, *, all_of_them: bool = False) -> None:
        for at, child in list(self._asleep):
            if all_of_them or time.monotonic() >= at:
                self._asleep.remove((at, child))
                os.kill(child.pid, signal.SIGCONT)
                self._running.append(child)

    def _settle(self, admin: Admin, producer: Producer) -> Counted:
        """Let one healthy worker finish, and count when every transaction is decided."""
        while self._asleep:
            self._wake()
            time.sleep(_TICK)
        self._start()
        producer.flush()
        deadline = time.monotonic() + _PATIENCE
        while not self._is_committed(admin) or self._is_open(admin):
            assert time.monotonic() < deadline, f"not done in time; {self._running[-1].output()}"
            for each in self._running:
                assert each.exit_code is None, f"a worker has ended by itself: {each.output()}"
            time.sleep(_TICK * 5)
        for child in self._running:
            while not _is_ready(child):
                time.sleep(_TICK)
            os.kill(child.pid, signal.SIGTERM)
        for child in self._running:
            assert child.wait() == 0, f"exit code {child.exit_code}: {child.output()}"
        self._running.clear()
        seen = Counter(committed_values(self._world.servers, self._target))
        every = [str(number).encode() for number in range(self._written)]
        assert not set(seen) - set(every)
        missing, repeated = (sum(seen[each] == 0 for each in every), sum(seen[each] > 1 for each in every))
        return Counted(missing, repeated, self._rebalances)

    def _is_committed(self, admin: Admin) -> bool:
        ends = admin.latest(self._source)
        stored = {each.partition: each.committed for each in admin.group_offsets(self._group)}
        return all((stored.get(partition) or 0) >= end for partition, end in ends.items())

    def _is_open(self, admin: Admin) -> bool:
        """Return whether a transaction still hides records of the target."""
        ends, stable = admin.latest(self._target), admin.latest(self._target, read_committed=True)
        return ends != stable


def _is_ready(child: Child) -> bool:
    """Return whether it would end when it is asked to."""
    return "ready" in child.log.read_text(errors="replace")
