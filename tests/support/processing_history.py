"""Random histories of workers that share a topic: they start, end, die, sleep, fail and lose their connections, while
records are written.

The promises know only the public interface. Whatever happens to the workers, with `Processor` each record that was
written is in the target exactly once, as a stranger counts that reads committed records;
`tests/support/sharing_history.py` has those of `Reader`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from fencepost import Admin, Producer
from fencepost.core.groups.membership import GroupProtocol
from tests.support.committed import committed_values
from tests.support.process import Child
from tests.support.proxy import Proxy
from tests.support.scripted.fates import Api, Fate

_WORKERS: Final = Path(__file__).parents[1] / "workers"
_PATIENCE: Final = 120.0
_TICK: Final = 0.02
_EVENTS: Final = (
    *("start", "start", "start", "kill", "sleep", "sleep", "end"),
    *("cut the connections", "cut the line", "lose an answer", "nothing"),
)
_LOSABLE: Final = (
    *(Api.FETCH, Api.PRODUCE, Api.OFFSET_FETCH, Api.OFFSET_COMMIT, Api.OWN, Api.CONSUMER_GROUP_HEARTBEAT),
    *(Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.TXN_OFFSET_COMMIT, Api.END_TXN, Api.INIT_PRODUCER_ID),
)


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
    pace: float = 1.0
    """The longest time between two events, in seconds."""
    without: str | None = None
    exclusive: bool = False


def busy(world: World) -> World:
    """With more workers and partitions, and events in quick succession, for long histories."""
    return world._replace(partitions=6, workers=5, pace=0.4, most_records=40)


class Counted(NamedTuple):
    missing: int
    repeated: int
    rebalances: int
    """How often a worker joined, left, was killed, or slept or was cut off for longer than its session."""
    events: Counter[str]


class Worker(NamedTuple):
    child: Child
    line: Proxy
    """What is between it and the servers."""


class History:
    script: ClassVar = "process_worker.py"

    def __init__(self, world: World, name: str, chance: random.Random, logs: Path) -> None:
        self._world = world
        self._chance = chance
        self._logs = logs
        self._source, self._target, self._group = f"{name}-source", f"{name}-target", f"{name}-group"
        self._running: list[Worker] = []
        self._away: list[tuple[float, Worker, Callable[[], None]]] = []
        """Who sleeps or is cut off, until when, and how that ends."""
        self._proxies = ExitStack()
        self._events: Counter[str] = Counter()
        self._started = 0
        self._written = 0
        self._rebalances = 0

    def run(self, rebalances: int) -> Counted:
        world = self._world
        with Admin(world.servers) as admin, Producer(world.servers) as producer, self._proxies:
            admin.create_topic(self._source, world.partitions)
            admin.create_topic(self._target, 2)
            try:
                self._start()
                while self._rebalances < rebalances:
                    self._write(producer)
                    self._act()
                    self._bring_back()
                    time.sleep(self._chance.random() * world.pace)
                return self._settle(admin, producer)
            finally:
                for worker in [*self._running, *(worker for _, worker, _ in self._away)]:
                    worker.child.kill()

    def _write(self, producer: Producer) -> None:
        for _ in range(self._chance.randrange(self._world.most_records)):
            producer.send(self._source, str(self._written), partition=self._written % self._world.partitions)
            self._written += 1

    def _act(self) -> None:
        # Most have work at hand; one that starts has none.
        ready = [worker for worker in self._running if _is_ready(worker.child)]
        worker = self._chance.choice(ready or self._running) if self._running else None
        event = self._chance.choice(_EVENTS)
        if event == "start" and len(self._running) + len(self._away) < self._world.workers:
            self._start()
        elif worker is not None:
            self._disturb(worker, event)
        for each in self._running:
            assert each.child.exit_code is None, f"a worker has ended by itself: {each.child.output()}"

    def _disturb(self, worker: Worker, event: str) -> None:
        child, line = worker
        match event:
            case "kill":
                child.kill()
                self._running.remove(worker)
                self._rebalances += 1
            case "sleep":
                os.kill(child.pid, signal.SIGSTOP)
                self._is_away(worker, lambda: os.kill(child.pid, signal.SIGCONT))
            case "end" if _is_ready(child):
                os.kill(child.pid, signal.SIGTERM)
                self._running.remove(worker)
                assert child.wait() == 0, f"exit code {child.exit_code}: {child.output()}"
                self._rebalances += 1
            case "cut the connections":
                line.cut()
            case "cut the line":
                line.silence()
                self._is_away(worker, lambda: line.silence(False))
            case "lose an answer":
                line.next(self._chance.choice(_LOSABLE), self._chance.choice([Fate.CUT, Fate.LOSE]))
            case _:
                return
        self._events[event] += 1

    def _is_away(self, worker: Worker, bring_back: Callable[[], None]) -> None:
        self._running.remove(worker)
        time_away = self._chance.choice([0.5, 1.6]) * self._world.session
        self._away.append((time.monotonic() + time_away, worker, bring_back))
        self._rebalances += time_away > self._world.session

    def _start(self) -> None:
        self._started += 1
        self._rebalances += 1
        self._events["start"] += 1
        line = self._proxies.enter_context(Proxy(self._world.servers))
        order: dict[str, Any] = {
            **self._world._asdict(),
            "servers": line.address,
            "source": self._source,
            "target": self._target,
            "group": self._group,
            "is_async": self._chance.random() < 0.3,
        }
        log = self._logs / f"{self._group}-{self._started}.txt"
        child = Child([sys.executable, str(_WORKERS / self.script), json.dumps(order)], log=log)
        self._running.append(Worker(child, line))

    def _bring_back(self) -> None:
        for each in list(self._away):
            at, worker, bring_back = each
            if time.monotonic() >= at:
                self._away.remove(each)
                bring_back()
                self._running.append(worker)

    def _settle(self, admin: Admin, producer: Producer) -> Counted:
        """Let one healthy worker finish, and count when every transaction is decided."""
        while self._away:
            self._bring_back()
            time.sleep(_TICK)
        self._start()
        producer.flush()
        deadline, done = time.monotonic() + _PATIENCE, -1
        while (left := self._uncommitted(admin)) or self._is_open(admin):
            if left != done:  # a long history on a busy machine leaves much to do
                deadline, done = time.monotonic() + _PATIENCE, left
            assert time.monotonic() < deadline, f"nothing is done any more; {self._running[-1].child.output()}"
            for child, _ in self._running:
                assert child.exit_code is None, f"a worker has ended by itself: {child.output()}"
            time.sleep(_TICK * 5)
        for child, _ in self._running:
            while not _is_ready(child):
                time.sleep(_TICK)
            os.kill(child.pid, signal.SIGTERM)
        for child, _ in self._running:
            assert child.wait() == 0, f"exit code {child.exit_code}: {child.output()}"
        self._running.clear()
        return self._count()

    def _count(self) -> Counted:
        seen = Counter(committed_values(self._world.servers, self._target))
        every = [str(number).encode() for number in range(self._written)]
        assert not set(seen) - set(every)
        missing, repeated = (sum(seen[each] == 0 for each in every), sum(seen[each] > 1 for each in every))
        return Counted(missing, repeated, self._rebalances, self._events)

    def _uncommitted(self, admin: Admin) -> int:
        ends = admin.latest(self._source)
        stored = {each.partition: each.committed for each in admin.group_offsets(self._group)}
        return sum(end - (stored.get(partition) or 0) for partition, end in ends.items())

    def _is_open(self, admin: Admin) -> bool:
        """Return whether a transaction still hides records of the target."""
        ends, stable = admin.latest(self._target), admin.latest(self._target, read_committed=True)
        return ends != stable


def _is_ready(child: Child) -> bool:
    """Return whether it would end when it is asked to."""
    return "ready" in child.log.read_text(errors="replace")
