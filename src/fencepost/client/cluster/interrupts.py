"""Signal handlers and finalizers that call a client. They run on a thread that they have interrupted at any point of a
call of the same client, and that call goes on only when they return.

So a handler must not wait for what the interrupted call holds. Locks are reentrant only so that it is known who holds
them (`is_mine`): a handler that needs one of its own thread's is refused (`interrupted`). And a thread that waits for
another one holds no lock that the other one needs. `threading.Event` and `concurrent.futures.Future` do, for a moment:
a handler that comes then, and waits, would wait for ever. `Flag` and `Outcome` stand in for them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Generic, TypeVar

from fencepost.errors import FencepostError

T = TypeVar("T")


def is_mine(lock: threading.RLock) -> bool:
    """Return whether this thread holds the lock: then a signal handler, or a finalizer, has interrupted its holder."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def interrupted(what: str = "producer") -> FencepostError:
    return FencepostError(
        f"a signal handler or a finalizer has interrupted a call of the same {what}, which must end first: let the "
        f"handler raise (sys.exit), or set an event, and call the {what} where the program goes on"
    )


class Flag:
    """An event. It has no lock: it relies on the order in which both sides write and look."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[threading.Lock] = []
        """One lock per waiting thread, released by the one that takes it from the list."""

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True  # before the list is read
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)  # before the flag is read
        is_told = self._is_set or mine.acquire(
            timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
        )
        with suppress(ValueError):  # it was taken
            self._waiting.remove(mine)
        return is_told or self._is_set


class Outcome(Generic[T]):
    """The result or the error of a call on another thread; set once."""

    __slots__ = ("_error", "_known", "_result")

    _result: T

    def __init__(self) -> None:
        self._known = Flag()
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._known.is_set()

    def set_result(self, result: T) -> None:
        self._result = result
        self._known.set()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._known.set()

    def result(self, timeout: float | None = None) -> T:
        """Wait for it. Raise TimeoutError if it is not known in time."""
        if not self._known.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result
