"""Runs copiers and readers against a server while everything around them fails, and has the history checked.

What fails: the server is killed and started again, on `os` and on `always`; the server is stopped for a while
(SIGSTOP); a copier is killed; a copier is stopped, another takes its place, and then it wakes up (the zombie); all
connections are cut; single requests of transactions lose their answer, are lost themselves, or arrive twice.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fencepost.errors import ErrorCode
from fencepost.testing.history import History, Recorder, Report, check
from fencepost.types import Offset, TopicPartition
from tests.support.batches import batch
from tests.support.crash import ServerProcess
from tests.support.process import Child
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Fate, Script
from tests.support.transactions import TransactionClient
from tests.workers.history_worker import GROUP, OUT_PARTITIONS

COPIERS: Final = 3
_AIMED_AT: Final = (0, 22, 24, 25, 26, 28)
"""Requests that a fault is aimed at: Produce and those of transactions."""
_PATIENCE: Final = 120.0


class HistoryRun:
    def __init__(self, folder: Path, seed: int, *, inputs: int) -> None:
        self.folder = folder
        self.seed = seed
        self.inputs = inputs
        self._dice = random.Random(seed)
        self._server = ServerProcess(folder)
        self._notes = Recorder(folder / "faults.notes", "faults")
        self._names = 0
        self._copiers: dict[int, Child] = {}
        self._zombies: list[Child] = []
        self._readers: list[Child] = []
        self._written = 0

    def run(self, seconds: float) -> Report:
        self._start_server()
        with RawClient(self._server.address) as client:
            client.create_topic("in", partitions=COPIERS)
            client.create_topic("out", partitions=OUT_PARTITIONS)
        with Proxy(self._server.address) as proxy:
            proxy.choose = self._fate
            self._proxy = proxy
            try:
                for partition in range(COPIERS):
                    self._start_copier(partition)
                self._start_reader()
                self._disturb(seconds)
                proxy.choose = lambda key: Fate.ANSWER
                self._finish()
            finally:
                for child in [*self._copiers.values(), *self._zombies, *self._readers]:
                    child.kill()
        return self._check()

    # --- processes ---

    def _start_server(self) -> None:
        self._server.start(self._dice.choice(["os", "always"]))
        self._server.await_ready()

    def _start_copier(self, partition: int) -> None:
        self._copiers[partition] = self._child("copy", f"copier{partition}", partition, self._dice.randrange(1 << 30))

    def _start_reader(self) -> None:
        self._readers.append(self._child("read", "reader"))

    def _child(self, what: str, name: str, *arguments: int) -> Child:
        self._names += 1
        own = f"{name}.{self._names}"
        notes = self.folder / f"{own}.notes"
        command = [sys.executable, "-m", "tests.workers.history_worker", what, self._proxy.address, str(notes), own]
        return Child([*command, *map(str, arguments)], log=self.folder / f"{own}.log")

    def _keep_up(self) -> None:
        """Whoever ended by itself (fenced, or told to start anew) is replaced, and there is something to copy."""
        for partition, child in self._copiers.items():
            if child.exit_code is not None:
                self._start_copier(partition)
        if self._written < self.inputs:
            self._write(min(50, self.inputs - self._written))

    def _write(self, count: int) -> None:
        with RawClient(self._server.address) as client:
            for partition in range(COPIERS):
                values = [f"{partition}:{number}".encode() for number in range(self._written, self._written + count)]
                now = [int(time.time() * 1000)] * count  # retention would take older records away
                whole = batch(values, timestamps=now)
                answer = client.produce("in", whole, partition=partition)
                assert answer.error is ErrorCode.NONE, answer
        self._written += count

    # --- faults ---

    def _fate(self, key: int) -> Script:
        if key not in _AIMED_AT or self._dice.random() > 0.005:
            return Fate.ANSWER
        fates = {"unanswered": Fate.CUT, "lost": Fate.LOSE, "doubled": Fate.DUPLICATE}
        name = self._dice.choice([*fates])
        self._notes.fault(f"requests {name}")
        return fates[name]

    def _disturb(self, seconds: float) -> None:
        faults: list[Callable[[], None]] = [
            self._kill_server, self._pause_server, self._kill_copier, self._replace_sleeping_copier,
            self._cut, self._cut, self._restart_reader,
        ]  # fmt: skip
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for fault in self._dice.sample(faults, len(faults)):  # every kind in every round
                self._keep_up()
                time.sleep(self._dice.uniform(0.1, 0.6))
                fault()

    def _kill_server(self) -> None:
        self._notes.fault("server kills")
        self._server.kill()
        self._start_server()

    def _pause_server(self) -> None:
        self._notes.fault("server pauses")
        with self._server.paused():
            time.sleep(self._dice.uniform(0.1, 1.0))

    def _kill_copier(self) -> None:
        self._notes.fault("copier kills")
        partition = self._dice.choice(list(self._copiers))
        self._copiers[partition].kill()
        self._start_copier(partition)

    def _replace_sleeping_copier(self) -> None:
        """The one that sleeps wakes up when another does its work."""
        self._notes.fault("copiers replaced while they slept")
        for zombie in self._zombies:
            _signal(zombie, signal.SIGCONT)
        partition = self._dice.choice(list(self._copiers))
        _signal(self._copiers[partition], signal.SIGSTOP)
        self._zombies.append(self._copiers[partition])
        self._start_copier(partition)

    def _cut(self) -> None:
        self._notes.fault("cuts of all connections")
        self._proxy.cut()

    def _restart_reader(self) -> None:
        self._notes.fault("reader kills")
        self._readers[-1].kill()
        self._start_reader()

    # --- the end ---

    def _finish(self) -> None:
        """Everybody awake, nothing disturbed any more: the input must be copied to its end."""
        for zombie in self._zombies:
            _signal(zombie, signal.SIGCONT)
        while self._written < self.inputs:
            self._write(min(500, self.inputs - self._written))
        deadline = time.monotonic() + _PATIENCE
        with TransactionClient(self._server.address) as client:
            for partition in range(COPIERS):
                while client.stable_group_offset(GROUP, "in", partition=partition) < self.inputs:
                    assert time.monotonic() < deadline, f"partition {partition} is not copied:\n{self._logs()}"
                    self._keep_up()
                    time.sleep(0.05)

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-500:] for path in sorted(self.folder.glob("copier*.log")))

    def _check(self) -> Report:
        with TransactionClient(self._server.address) as client:
            log = {
                TopicPartition("out", partition): [
                    (Offset(record.offset), (record.value or b"").decode())
                    for record in client.committed_records("out", partition=partition)
                ]
                for partition in range(OUT_PARTITIONS)
            }
            for partition in range(OUT_PARTITIONS):
                assert client.stable_offset("out", partition=partition) == client.end_offset("out", partition)
        self._server.kill()
        done = [f"{p}:{number}/{half}" for p in range(COPIERS) for number in range(self.inputs) for half in range(2)]
        return check(History.load(sorted(self.folder.glob("*.notes"))), log, done=done)


def _signal(child: Child, number: int) -> None:
    if child.exit_code is None:
        os.kill(child.pid, number)
