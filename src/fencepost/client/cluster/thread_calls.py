"""Calls between threads: other threads have the send thread run something, and it has short-lived threads wait for it.

The send thread waits only for the network. If it needs a blocking call, such as a step of a transaction, a short-lived
thread makes that call and hands the outcome back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from fencepost.client.cluster.interrupts import Outcome
from fencepost.errors import Closed, FencepostError

log = logging.getLogger("fencepost.producer")

T = TypeVar("T")


def _ignore(error: Exception) -> None:
    """Do nothing: nobody waits for it."""


class ThreadCalls:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.calls: deque[tuple[Callable[[], object], Callable[[Exception], object] | None]] = deque()
        """What to call, and whom to tell if that raises; None: nobody, it is a bug."""
        self._over = False
        self._why = Closed("the producer is closed")

    def call(self, what: Callable[[], T]) -> T:
        """Run `what` on the send thread and wait for its result. For all other threads."""
        outcome: Outcome[T] = Outcome()
        self.post(lambda: outcome.set_result(what()), outcome.set_exception)
        return outcome.result()

    def post(self, what: Callable[[], object], failed: Callable[[Exception], object] = _ignore) -> None:
        """Have the send thread run `what`, and call `failed` with what it raises. For all threads, without waiting."""
        self.calls.append((what, failed))
        self._wake()
        if self._over:  # perhaps it was added after the last turn
            self.close()

    def run_in_thread(self, work: Callable[[], T], then: Callable[[T | FencepostError], None]) -> None:
        """Run `work`, which may block, on a thread of its own. `then` is called on the send thread with its outcome."""

        def bring(outcome: T | FencepostError) -> None:
            self.calls.append((lambda: then(outcome), None))
            self._wake()

        def run() -> None:
            outcome: T | FencepostError
            try:
                outcome = work()
            except FencepostError as error:
                outcome = error
            except Exception as error:  # a bug, but the outcome is waited for
                log.exception("a blocking call failed")
                outcome = _wrapped(error)
            bring(outcome)

        try:
            threading.Thread(target=run, name="fencepost-blocking", daemon=True).start()
        except RuntimeError as error:  # no thread can be started
            if "shutdown" in str(error):  # the interpreter shuts down: run it here (Python 3.12 and newer)
                run()
            else:
                bring(_wrapped(error))

    def run_due(self) -> None:
        """Run the calls that other threads asked for, at the beginning of the send thread's turn."""
        while self.calls:
            what, failed = self.calls.popleft()
            try:
                what()
            except Exception as error:
                if failed is None:
                    raise
                failed(error)

    def leave_to_parent(self, why: Closed) -> None:
        """In a forked child: fail every call from now on. Those that wait have their callers in the parent."""
        self.calls.clear()
        self._over, self._why = True, why

    def close(self) -> None:
        """Fail all waiting calls: the send thread has ended."""
        self._over = True
        while self.calls:
            _, failed = self.calls.popleft()
            if failed is not None:
                failed(self._why.fresh())


def _wrapped(error: Exception) -> FencepostError:
    wrapped = FencepostError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
