"""Producers that nobody closed: what they hold is sent all the same, for a while, and what is lost is said.

Three ways to forget a producer, and who sends what it holds:

    the interpreter ends            `atexit`: the threads of the program have ended by then, the send threads still run
    a child of multiprocessing ends its own finalizers, because such a process leaves without `atexit`
    the producer is garbage         its send thread, which does not hold the producer, and ends when it is done

Each waits for `exit_timeout` seconds at most, and says in one line on stderr how many records of which topics were not
delivered. A forked child has nothing to do with the records of its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Final

from fencepost.client.produce.sender import Sender

_running: Final[dict[Remains, None]] = {}
"""Of every producer whose send thread runs in this process."""


class Remains:
    """What is left of a producer that nobody closed: its send thread, and all that this needs. Knows no producer, so
    that one which is garbage is collected."""

    def __init__(self, sender: Sender, where: str, patience: float, end: Callable[[], None]) -> None:
        """`where`: the servers. `end` gives back what the send thread does not."""
        self._sender = sender
        self._where = where
        self._patience = patience
        self._end = end
        self._pid = os.getpid()
        self._is_orphan = False
        self._unsaid = ["what is lost"]
        """Whoever takes it says it: the send thread, or the one that ends the program."""
        self._finalizer: weakref.finalize[[], object] | None = None
        self.thread = threading.Thread(target=self._run, name="fencepost-send", daemon=True)

    def begin(self, producer: object) -> None:
        _watch()
        self.thread.start()
        _running[self] = None
        self._finalizer = weakref.finalize(producer, self._orphaned)
        self._finalizer.atexit = False  # `_at_exit` sees to it, all producers together

    def close(self) -> None:
        """The producer is being closed: nothing is to be done any more."""
        _running.pop(self, None)
        if self._finalizer is not None:
            self._finalizer.detach()

    def _run(self) -> None:
        self._sender.run()
        if self._is_orphan:
            _running.pop(self, None)
            self._say("when its producer was garbage-collected")
            self._end()

    def _orphaned(self) -> None:
        """The producer was garbage-collected, on whatever thread and wherever that was: no lock is taken here."""
        if self._pid != os.getpid() or self not in _running:
            return
        self._is_orphan = True
        self._sender.finish_within(self._patience)
        self._warn()

    # --- the end of the process ---

    def hurry(self) -> None:
        """From now on nothing waits for more records to come."""
        self._sender.finish_soon()

    def at_exit(self, begun: float) -> None:
        """Waits for `exit_timeout` from `begun`, which all producers have in common."""
        sender = self._sender
        try:
            sender.queues.wait_until_settled(max(0.0, begun + self._patience - time.monotonic()))
        finally:
            self._say("when the program ended")
            if sender.standing.transaction is not None:
                _complain("fencepost: a transaction was open when the program ended: what was sent in it is aborted.")
            self._sender.stop()
            self.thread.join(1.0)  # a daemon, and at an end of its own if it hangs in somebody's callback
            self._warn()

    def _say(self, when: str) -> None:
        try:
            self._unsaid.pop()
        except IndexError:
            return
        lost = self._sender.left_over or self._sender.undelivered()
        if not lost:
            return
        last = self._sender.brokers.last_error
        because = f" ({last})" if last is not None else ""
        topics = ", ".join(f"{topic}: {count}" for topic, count in sorted(lost.items()))
        count = sum(lost.values())
        _complain(
            f"fencepost: {count} record{'s' if count != 1 else ''} not delivered {when}{because}: {topics}. "
            "Call producer.flush() or close() before the end, or use `with Producer(…) as producer`."
        )

    def _warn(self) -> None:
        warnings.warn(
            f"unclosed fencepost producer of {self._where}: call close(), or use it in a `with` block",
            ResourceWarning,
            stacklevel=2,
        )


def _complain(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # closed
            print(line, file=sys.stderr, flush=True)


def _at_exit() -> None:
    """All producers have the same time, and what happens to one is no reason to leave out the others."""
    begun = time.monotonic()
    error: Exception | None = None
    for remains in list(_running):
        remains.hurry()
    for remains in list(_running):
        _running.pop(remains, None)
        try:
            remains.at_exit(begun)
        except KeyboardInterrupt:
            begun = float("-inf")  # the user waits for nothing more; the others still say what they have lost
        except Exception as its:  # noqa: BLE001 - a warning that the user has made an error
            error = error or its
    if error is not None:
        raise error


def _forget() -> None:
    """In a forked child: the send threads are the parent's."""
    for remains in list(_running):
        remains.close()
        if remains._is_orphan:
            remains._sender.forget_sockets()
    _running.clear()
    _watched.clear()


_watched: Final[set[int]] = set()


def _watch() -> None:
    """Once per process."""
    if os.getpid() in _watched:
        return
    _watched.add(os.getpid())
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _at_exit, exitpriority=100)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
