"""The send thread of a producer, and how it ends when nobody closes the producer.

Records of an unclosed producer are still sent, and lost ones are reported:

    the interpreter exits               by `atexit`: the program's threads have ended, the send threads still run
    a multiprocessing child exits       by multiprocessing's finalizers, because such a process skips `atexit`
    the producer is garbage-collected   by the send thread, which has no reference to it and ends when all is sent

Each waits for `exit_timeout` seconds at most, and prints one line to stderr with the number of undelivered records per
topic. A forked child leaves its parent's records alone.
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
        self._thread = threading.Thread(target=self._run, name="fencepost-send", daemon=True)

    def begin(self, producer: object) -> None:
        _watch()
        self._thread.start()
        _running[self] = None
        self._finalizer = weakref.finalize(producer, self._orphaned)
        self._finalizer.atexit = False  # `_at_exit` handles all producers together

    @property
    def takes_calls(self) -> bool:
        """True if the calling thread can wait for the send thread: it runs, and is another thread."""
        return self._thread.is_alive() and self._thread is not threading.current_thread()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def close(self) -> None:
        """Stop watching: the producer is being closed."""
        _running.pop(self, None)
        if self._finalizer is not None:
            self._finalizer.detach()

    def _run(self) -> None:
        self._sender.run()
        if self._is_orphan:
            _running.pop(self, None)
            self._report("when its producer was garbage-collected")
            self._end()

    def _orphaned(self) -> None:
        """Finish after the producer was garbage-collected. That may happen on any thread at any point: take no lock."""
        if self._pid != os.getpid() or self not in _running:
            return
        self._is_orphan = True
        self._sender.finish_within(self._patience)
        self._warn()

    # --- the end of the process ---

    def hurry(self) -> None:
        """Send batches at once from now on, full or not."""
        self._sender.finish_soon()

    def at_exit(self, begun: float) -> None:
        """Wait until `exit_timeout` after `begun`, a moment that all producers share."""
        sender = self._sender
        try:
            sender.wait_until_settled(max(0.0, begun + self._patience - time.monotonic()))
        finally:
            self._report("when the program ended")
            if sender.open_transaction is not None:
                _print_error("fencepost: a transaction was open when the program ended: its records are aborted.")
            self._sender.stop()
            self._thread.join(1.0)  # it is a daemon, and may hang in a callback of the user's
            self._warn()

    def _report(self, when: str) -> None:
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
        _print_error(
            f"fencepost: {count} record{'s' if count != 1 else ''} not delivered {when}{because}: {topics}. "
            "Call producer.flush() or close() before the end, or use `with Producer(…) as producer`."
        )

    def _warn(self) -> None:
        warnings.warn(
            f"unclosed fencepost producer of {self._where}: call close(), or use it in a `with` block",
            ResourceWarning,
            stacklevel=2,
        )


def _print_error(line: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # closed
            print(line, file=sys.stderr, flush=True)


def _at_exit() -> None:
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
            thread._sender.forget_sockets()
    _running.clear()
    _watched.clear()


_watched: Final[set[int]] = set()


def _watch() -> None:
    """Register `_at_exit`, once per process."""
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
