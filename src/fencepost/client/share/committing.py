"""Commits in the order in which they were asked for, whether the caller waits for them or not.

A commit that nobody waits for is sent by a thread. Those that come meanwhile are put together: of each partition only
the newest offset is stored. A commit that is waited for takes along what was asked for before it, so that an older
offset never overwrites a newer one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from fencepost.client.cluster.interrupts import interrupted, is_mine
from fencepost.errors import FencepostError
from fencepost.types import TopicPartition

log = logging.getLogger("fencepost.reader")


class Commits:
    def __init__(self, store: Callable[[Mapping[TopicPartition, int]], None]) -> None:
        self._store = store
        # Held while offsets are stored: one commit at a time.
        self._storing = threading.RLock()
        # Guards what follows, and is never held while something waits.
        self._lock = threading.RLock()
        self._later: dict[TopicPartition, int] = {}
        self._is_running = False
        self._failed: FencepostError | None = None

    def commit(self, offsets: Mapping[TopicPartition, int], *, wait: bool) -> None:
        """Store the offsets. Raise the error of an earlier commit that nobody waited for, if it failed."""
        if is_mine(self._lock) or is_mine(self._storing):
            raise interrupted("reader")
        with self._lock:
            failed, self._failed = self._failed, None
            if failed is None and not wait:
                self._later |= offsets
                if self._later and not self._is_running:
                    self._is_running = True
                    threading.Thread(target=self._run, name="fencepost-commit", daemon=True).start()
        if failed is not None:
            raise failed
        if wait:
            with self._storing:
                earlier = self._take()
                if together := {**earlier, **offsets}:
                    self._store(together)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what was not sent of these: they are another member's now."""
        with self._lock:
            for partition in partitions:
                self._later.pop(partition, None)

    def flush(self) -> None:
        """Store what was asked for, before the reader closes or releases partitions."""
        with self._storing:
            if earlier := self._take():
                self._store(earlier)

    def _take(self) -> dict[TopicPartition, int]:
        with self._lock:
            earlier, self._later = self._later, {}
            return earlier

    def _run(self) -> None:
        while True:
            with self._storing:
                with self._lock:
                    if not self._later:
                        self._is_running = False
                        return
                try:
                    if earlier := self._take():
                        self._store(earlier)
                except FencepostError as error:
                    log.warning("a commit that nobody waited for failed: %s", error)
                    with self._lock:
                        self._failed = error
