"""Two bridges of the send thread: calls that other threads have it make, and waits that others do for it.

The send thread never waits for anything but the network. What is asked rarely and has a blocking form already, the
steps of a transaction, is an errand: a thread for the moment runs it and brings the outcome back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from fencepost.errors import Closed, FencepostError

log = logging.getLogger("fencepost.producer")

T = TypeVar("T")


class Errands:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._calls: deque[tuple[Callable[[], Any], Future[Any] | None]] = deque()
        self._over = False

    def call(self, what: Callable[[], T]) -> T:
        """From any other thread: has the send thread do it, and waits for the result."""
        result: Future[T] = Future()
        self._calls.append((what, result))
        self._wake()
        if self._over:  # perhaps after the last look
            self.close()
        return result.result()

    def send_out(self, work: Callable[[], T], then: Callable[[T | FencepostError], None]) -> None:
        """From the send thread: `work` may block; `then` is called here, later, with its result or its error."""

        def bring(outcome: T | FencepostError) -> None:
            self._calls.append((lambda: then(outcome), None))
            self._wake()

        def run() -> None:
            outcome: T | FencepostError
            try:
                outcome = work()
            except FencepostError as error:
                outcome = error
            except Exception as error:  # a bug, but somebody waits for the outcome
                log.exception("an errand failed")
                outcome = _wrapped(error)
            bring(outcome)

        try:
            threading.Thread(target=run, name="fencepost-errand", daemon=True).start()
        except RuntimeError as error:  # no more threads are to be had
            if "shutdown" in str(error):  # the interpreter ends: what is left is done here (Python 3.12 and newer)
                run()
            else:
                bring(_wrapped(error))

    def run_due(self) -> None:
        """On the send thread, at the beginning of a turn."""
        while self._calls:
            what, result = self._calls.popleft()
            if result is None:
                what()
                continue
            try:
                result.set_result(what())
            except Exception as error:  # noqa: BLE001 - it is the caller's
                result.set_exception(error)

    def close(self) -> None:
        """The send thread has ended: nobody shall wait for it."""
        self._over = True
        while self._calls:
            _, result = self._calls.popleft()
            if result is not None:
                result.set_exception(Closed("the producer is closed"))


def _wrapped(error: Exception) -> FencepostError:
    wrapped = FencepostError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
