"""Questions whose answers a reader waits for while it goes on: they run on short-lived threads.

Looking up a position can take as long as a transaction of another member. Meanwhile the partitions whose positions are
known are read, and heartbeats are answered.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from fencepost.client.cluster.patience import Backoff
from fencepost.errors import FencepostError

log = logging.getLogger("fencepost.reader")

T = TypeVar("T")
_LONGEST_PAUSE = 1.0


class Lookups(Generic[T]):
    """Runs questions, and keeps the answers until the reader's thread takes them."""

    def __init__(self, wake: Callable[[], None], backoff: float, patience: float) -> None:
        self._wake = wake
        self._backoff = backoff
        self._patience = patience
        # Appending to a deque and popping from it are atomic.
        self._found: deque[T | FencepostError | None] = deque()
        self._over = threading.Event()
        self.waiting = 0
        """The number of questions whose answers were not taken yet. For the reader's thread."""

    def ask(self, question: Callable[[], T], is_wanted: Callable[[], bool]) -> None:
        """Run `question`, repeatedly while it fails with an error that may pass, until nobody wants its answer."""

        def run() -> None:
            pauses = Backoff(self._backoff, _LONGEST_PAUSE, self._patience, sleep=self._over.wait)
            while True:
                try:
                    outcome: T | FencepostError | None = question()
                except FencepostError as error:
                    if not self._over.is_set() and error.retriable and is_wanted() and pauses.wait():
                        continue
                    outcome = error if is_wanted() else None
                except Exception as error:
                    log.exception("looking up positions")
                    outcome = FencepostError(f"{type(error).__name__}: {error}")
                self._found.append(outcome)
                self._wake()
                return

        self.waiting += 1
        threading.Thread(target=run, name="fencepost-lookup", daemon=True).start()

    def take(self) -> T | None:
        """Return an answer, or None if none is here. Raise the error of a question that failed."""
        while self._found:
            self.waiting -= 1
            outcome = self._found.popleft()
            if isinstance(outcome, FencepostError):
                raise outcome
            if outcome is not None:
                return outcome
        return None

    def close(self) -> None:
        self._over.set()
