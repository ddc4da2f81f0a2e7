"""The send thread of a producer, and how it ends when nobody closes the producer.

Records of an unclosed producer are still sent, and lost ones are reported:

    the interpreter exits               by `atexit`: the program's threads have ended, the send threads still run
    a multiprocessing child exits       by multiprocessing's finalizers, because such a process skips `atexit`
    the producer is garbage-collected   by the send thread, which has no reference to it and ends when all is sent

Each waits for `exit_timeout` seconds at most, and prints one line to stderr with the number of undelivered records per
topic. A producer that is used for the first time after that raises Closed: nobody would wait for its records. A forked
child leaves its parent's records alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Final

from fencepost.at_exit import at_exit, finish, is_over
from fencepost.client.cluster.interrupts import Flag
from fencepost.client.produce.sender import Sender
from fencepost.errors import Closed

_running: Final[dict[SendThread, None]] = {}
"""The running send threads of this process."""


class SendThread:
    """A send thread. It has no reference to its producer, so that an unclosed producer can be garbage-collected."""

    def __init__(self, sender: Sender, where: str, patience: float, end: Callable[[], None]) -> None:
        """`where`: the servers. `end` closes what the send thread does not."""
        self._sender = sender
        self._where = where
        self._patience = patience
        self._end = end
        self._pid = os.getpid()
        self._is_orphan = False
        self._unreported = ["lost records"]
        """The thread that pops it reports the loss: the send thread, or the one that ends the program."""
        self._finalizer: weakref.finalize[[], object] | None = None
        self._runners: list[threading.Thread] = []
        """Only the first one runs the sender. If a signal handler raises while a thread is being started, nobody can
        tell whether it will run, so another one is started."""
        self._has_begun = Flag()

    @property
    def has_begun(self) -> bool:
        return bool(self._runners)

    def begin(self, producer: object) -> None:
        """Return once it runs. If a signal handler has raised in here, this can be called again."""
        _running[self] = None  # before the next look: either this thread sees the end, or the end sees the producer
        if is_over() or sys.is_finalizing():  # a thread that is started now may never run
            raise self._too_late()
        _watch()
        if self._finalizer is None:
            self._finalizer = weakref.finalize(producer, self._orphaned)
            self._finalizer.atexit = False  # `_finish_all` handles all producers together
        try:
            threading.Thread(target=self._run, name="fencepost-send", daemon=True).start()
        except RuntimeError as error:
            if "shutdown" in str(error):  # Python 3.12 and newer start no thread once exit hooks run
                raise self._too_late() from error
            raise
        self._has_begun.wait()

    @property
    def takes_calls(self) -> bool:
        """True if the calling thread can wait for the send thread: it runs, and is another thread."""
        return self._is_alive and not self.is_current

    @property
    def is_current(self) -> bool:
        """True for the send thread itself, as in a callback: it must not wait for itself."""
        return self._runners[:1] == [threading.current_thread()]

    @property
    def _is_alive(self) -> bool:
        return self.has_begun and self._runners[0].is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the sender has ended. If no thread runs it, end it here, and none will."""
        if self._is_first():
            self._sender.close()
            self._sender.abandon()
        else:
            self._runners[0].join(timeout)

    def close(self) -> None:
        """Stop watching: the producer is being closed."""
        _running.pop(self, None)
        if self._finalizer is not None:
            self._finalizer.detach()

    def _run(self) -> None:
        is_first = self._is_first()
        self._has_begun.set()
        if not is_first:
            return
        self._sender.run()
        if self._is_orphan:
            _running.pop(self, None)
            self.report("when its producer was garbage-collected")
            self._end()

    def _is_first(self) -> bool:
        self._runners.append(threading.current_thread())
        return self.is_current

    def _orphaned(self) -> None:
        """Finish after the producer was garbage-collected. That may happen on any thread at any point: take no lock."""
        if self._pid != os.getpid() or self not in _running:
            return
        self._is_orphan = True
        self._sender.finish_within(self._patience)
        self._warn()

    def _too_late(self) -> Closed:
        _running.pop(self, None)
        return Closed("the program is ending, and a producer can no longer start: send the first record earlier")

    # --- the end of the process ---

    def hurry(self) -> None:
        """Accept no more records, and send batches at once, full or not. A daemon thread may still send: what it sends
        after the count was taken would be lost without a word."""
        self._sender.finish_soon(Closed("the program is ending, and nobody would wait for more records"))

    def at_exit(self, begun: float) -> None:
        """Wait until `exit_timeout` after `begun`, a moment that all producers share."""
        sender = self._sender
        try:
            sender.queues.wait_until_settled(max(0.0, begun + self._patience - time.monotonic()))
        finally:
            self.report("when the program ended")
            if sender.open_transaction is not None:
                print_error("fencepost: a transaction was open when the program ended: its records are aborted.")
            self._sender.stop()
            if self._is_alive:  # else it is being started, by a daemon thread
                self._runners[0].join(1.0)  # it is a daemon, and may hang in a callback of the user's
            self._warn()

    def report(self, when: str) -> None:
        """Print how many records were not delivered, if any; once."""
        try:
            self._unreported.pop()
        except IndexError:
            return
        lost = self._sender.left_over or self._sender.undelivered()
        if not lost:
            return
        why = self._sender.trouble().removeprefix(": ")
        because = f" ({why})" if why else ""
        topics = ", ".join(f"{topic}: {count}" for topic, count in sorted(lost.items()))
        count = sum(lost.values())
        print_error(
            f"fencepost: {count} record{'s' if count != 1 else ''} not delivered {when}{because}: {topics}. "
            "Call producer.flush() or close() before the end, or use `with Producer(…) as producer`."
        )

    def _warn(self) -> None:
        warnings.warn(
            f"unclosed fencepost producer of {self._where}: call close(), or use it in a `with` block",
            ResourceWarning,
            stacklevel=2,
        )


def print_error(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # closed
            print(line, file=sys.stderr, flush=True)


def _finish_all() -> None:
    """Finish all producers within the same time, whatever happens to one of them."""
    begun = time.monotonic()
    error: Exception | None = None
    for thread in list(_running):
        thread.hurry()
    for thread in list(_running):
        _running.pop(thread, None)
        try:
            thread.at_exit(begun)
        except KeyboardInterrupt:
            begun = float("-inf")  # the user does not want to wait; the others still report their losses
        except Exception as its:  # noqa: BLE001 - a warning that the user turned into an error
            error = error or its
    if error is not None:
        raise error


def _forget() -> None:
    """In a forked child: forget the parent's send threads."""
    for thread in list(_running):
        thread.close()
        if thread._is_orphan:
            thread._sender.leave_to_parent()
    _running.clear()


_watched: Final[set[int]] = set()
"""The children of multiprocessing that have the finalizer; a child inherits its parent's number too."""


def _watch() -> None:
    """In a child of multiprocessing, which skips `atexit`: register a finalizer, once."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or os.getpid() in _watched:
        return
    _watched.add(os.getpid())
    util.Finalize(None, finish, exitpriority=100)


at_exit(_finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
