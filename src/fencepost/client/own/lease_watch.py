"""A thread that looks at a lease when it ends, so that `lost` is set and `on_lost` is called although nobody asks.

A producer's send thread does this itself. This one is for readers, which have no thread, and for holds on Apache Kafka.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fencepost.clock import Clock
from fencepost.core.own.lease import NEVER, Lease


class LeaseWatch:
    """The thread runs while there is a lease. Any thread may call the methods."""

    def __init__(self, lease: Lease, clock: Clock, look: Callable[[], object]) -> None:
        """`look` returns something true if the ownership is lost."""
        self._lease = lease
        self._clock = clock
        self._look = look
        self._changed = threading.Condition()
        self._is_running = False
        self._is_over = False

    def go_on(self) -> None:
        """Watch the lease that has begun or was shortened."""
        with self._changed:
            self._changed.notify_all()
            if not self._is_running and not self._is_over and self._lease.end != NEVER:
                threading.Thread(target=self._run, name="fencepost-lease", daemon=True).start()
                self._is_running = True

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self) -> None:
        while self._waits() and not self._look():
            pass  # an answer came just in time

    def _waits(self) -> bool:
        """Wait for the end of the lease. Return False if there is nothing more to wait for."""
        with self._changed:
            while not self._is_over and (end := self._lease.end) != NEVER:
                now = self._clock.monotonic()
                if now >= end:
                    return True
                self._changed.wait(min(end - now, threading.TIMEOUT_MAX))
            self._is_running = False
            return False
