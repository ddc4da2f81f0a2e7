"""A server in this process that dies at a chosen step: from then on nothing that it does reaches the disk.

Every change of a file and both sides of every commit of the store are steps, counted together. `arm(n)` lets n further
steps happen; the one behind them, and all after it, do not (a write half happens, as in `FailingFiles`). Whoever waits
for what will not come waits for ever, as a client of a killed process does. That is `kill -9` with a choice of the
moment: a test can go through all of them, one after the other, until a run gets through alive.

`lose_power` then takes away from the logs what was not synced. The store is a real SQLite file on a real disk and keeps
all that it had committed, also what its last sync might not have reached. For a test of transactions that is the severe
case, since it can only make a decision survive that came too early. That SQLite itself keeps what it has acknowledged
with `synchronous=FULL` is taken for granted here: the test does not cut the power under SQLite.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import fencepost
from fencepost.server.storage import store
from tests.support.failing_files import FailingFiles, Stopped

_SLOW_SYNC = 0.02


class Steps(FailingFiles):
    """Files that fail, and the count of all steps."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.dead = threading.Event()
        self.armed = False
        self._now = "change"
        self.names: list[str] = []
        """The steps taken since `arm`, for the message of a test that failed."""
        self._lock = threading.Lock()
        self._commits = threading.Event()

    def arm(self, steps: int) -> None:
        self.names.clear()
        self._commits.clear()
        self.armed = True
        self.stop_at(self.changes + steps)

    def disarm(self) -> None:
        self.armed = False
        self.stop_at(None)

    def step(self, name: str) -> None:
        """One that is not a change of a file."""
        with self._lock:
            self._now = name
            self._change()
        if name == "after a commit":
            self._commits.set()

    def write(self, fd: int, data: Any, position: int) -> int:
        self._now = "write"
        try:
            return super().write(fd, data, position)
        except Stopped:
            self.dead.set()
            raise

    def sync(self, fd: int) -> None:
        if self.armed:
            # The disk is slow: whatever does not wait for a sync, but should, gets ahead of it.
            self._commits.wait(_SLOW_SYNC)
        self._now = "sync"
        super().sync(fd)

    def _change(self) -> None:
        try:
            super()._change()
        except Stopped:
            self.dead.set()
            raise
        self.names.append(self._now)
        self._now = "change"


class _Held:
    """Stands for the loop while a commit is made, and keeps back what the loop is to be told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def call_soon_threadsafe(self, *call: Any) -> None:
        self.told.append(call)


class _MortalStore(store.Store):
    steps: Steps

    def _commit(self, batch: list[store._Change]) -> None:
        held = _Held()
        try:
            self.steps.step("before a commit")
            super()._commit([change._replace(loop=held) for change in batch])  # type: ignore[arg-type]
            self.steps.step("after a commit")
        except Stopped:
            return  # nobody is told anything any more
        loop = batch[0].loop
        assert all(change.loop is loop for change in batch)
        for call in held.told:
            loop.call_soon_threadsafe(*call)


class MortalServer:
    """One data directory, and servers on it: the first may be killed, the next come up on what it left."""

    def __init__(self, folder: Path, sync: Literal["os", "always"]) -> None:
        self.data = folder
        self._sync = sync
        (folder / "logs").mkdir(parents=True)
        self.steps = Steps(folder / "logs")

    @contextmanager
    def mortal(self) -> Iterator[str]:
        """A server that can be armed; its address. At the end of the block it is gone, and if it died before, then
        without having tidied up anything."""
        store_class = type("MortalStore", (_MortalStore,), {"steps": self.steps})
        with mock.patch("fencepost.server.broker.Store", store_class):
            # It has nobody to be polite to: whoever it has not answered is dead to it.
            server = fencepost.Server(self.data, sync=self._sync, files=self.steps, drain_ms=0)
            server.start()
        try:
            yield server.address
        finally:
            server.stop()

    def lose_power(self, chance: random.Random | None = None) -> None:
        self.steps.lose_power(chance)

    @contextmanager
    def next(self) -> Iterator[str]:
        with fencepost.Server(self.data, sync=self._sync) as server:
            yield server.address
