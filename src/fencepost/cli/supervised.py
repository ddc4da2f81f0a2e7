"""A command in its own process group, which is ended as a whole.

The processes that a shell script starts are in its group, and would outlive the script. `Supervised.end` sends SIGTERM
to the group, and SIGKILL to the rest after the grace period. SIGTERM and SIGHUP to this process end the group in the
same way, so the resources are released only after the command has ended. Ctrl-C is passed on, and the command decides.
If this process is killed with -9, the watcher of `launch.py` kills the group. If it is stopped until its lease is over,
the watcher ends the group: `alive` is called with every answered heartbeat.

At a terminal the group is in the foreground while it runs, and job control works: when Ctrl-Z stops the command, this
process stops too, and both continue together.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from fencepost.cli import launch


class Supervised:
    """One run of one command. For the main thread; `end` and `alive` may be called from any thread."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        grace: float,
        lease_end: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`lease_end`: returns the moment at which the resources are lost, by the monotonic clock."""
        self._command = command
        self._environment = environment
        self._grace = grace
        self._lease_end = lease_end
        self._lifeline: int | None = None
        self._group = 0
        self._at_terminal = _has_terminal()
        self._over = False
        self._ending: threading.Thread | None = None
        # Guards `_ending`: a takeover and a stop signal may come at the same time.
        self._lock = threading.Lock()
        self.stopped_by: signal.Signals | None = None
        """The signal that ended the command."""

    def run(self, lost: threading.Event) -> int:
        """Run the command until it exits, or end it once `lost` is set. Return its exit code as a shell does: 128 + N
        after signal N."""
        with self._signals(), _lifeline() as (theirs, ours):
            self._lifeline = ours
            how = [str(theirs), str(int(self._at_terminal)), repr(self._lease_end()), str(self._grace)]
            words = [sys.executable, "-IS", launch.__file__, *how, *self._command]
            child = subprocess.Popen(words, env=dict(self._environment), process_group=0, pass_fds=(theirs,))
            os.close(theirs)
            self._group = child.pid
            if self.stopped_by is not None:  # the signal came before the start
                self.end()
            threading.Thread(target=self._end_when, args=(lost,), daemon=True).start()
            child.returncode = code = self._wait(child.pid)
            if lost.is_set() or self.stopped_by is not None:
                self.end()
            self._over = True
            if self._ending is not None:
                self._ending.join()  # its child processes may take longer
            with self._lock:
                self._lifeline = None  # no other thread writes to it from here on
            with contextlib.suppress(BrokenPipeError):
                os.write(ours, b".")
        return code if code >= 0 else 128 - code

    def alive(self) -> None:
        """Tell the watcher how long the resources are owned. At that moment it ends the group."""
        with self._lock, contextlib.suppress(BrokenPipeError, BlockingIOError):
            if self._lifeline is not None:
                os.write(self._lifeline, b"+" + struct.pack("d", self._lease_end()))

    def end(self) -> None:
        """Begin to end the whole group; `run` returns when it is gone."""
        with self._lock:
            if self._group and not self._over and self._ending is None:
                self._ending = threading.Thread(target=launch.end_group, args=(self._group, self._grace), daemon=True)
                self._ending.start()

    def _end_when(self, lost: threading.Event) -> None:
        lost.wait()
        self.end()

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the group has only zombies
            os.killpg(self._group, number)

    # -- signals to this process ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {}
        for number, handler in (
            (signal.SIGTERM, self._told_to_stop),
            (signal.SIGHUP, self._told_to_stop),
            (signal.SIGINT, self._interrupted),
        ):
            if signal.getsignal(number) is not signal.SIG_IGN:  # respect nohup
                before[number] = signal.signal(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def _told_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by = signal.Signals(number)
        # On another thread: this handler may run while its thread holds the lock.
        threading.Thread(target=self.end, daemon=True).start()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._group:
            self._signal_group(signal.SIGINT)

    # -- job control ------------------------------------------------------------------------------------------

    def _wait(self, pid: int) -> int:
        try:
            while True:
                _, status = os.waitpid(pid, os.WUNTRACED if self._at_terminal else 0)
                if not os.WIFSTOPPED(status):
                    return os.waitstatus_to_exitcode(status)
                self._stop_too()
        finally:
            if self._at_terminal:
                _give_terminal(os.getpgrp())

    def _stop_too(self) -> None:
        """Stop this process too after Ctrl-Z, and give the shell the terminal until it continues both."""
        _give_terminal(os.getpgrp())
        os.kill(0, signal.SIGTSTP)
        if _has_terminal():  # `fg`, not `bg`
            _give_terminal(self._group)
        self._signal_group(signal.SIGCONT)


@contextlib.contextmanager
def _lifeline() -> Iterator[tuple[int, int]]:
    """Yield the two ends of a pipe: the watcher's, which the caller closes, and ours."""
    theirs, ours = os.pipe()
    try:
        yield theirs, ours
    finally:
        os.close(ours)


def _has_terminal() -> bool:
    """Return whether this process is in the terminal's foreground. With the output in a pipe it is not: the reader of
    the pipe, such as a pager, may need the keyboard."""
    try:
        return os.isatty(0) and os.isatty(1) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _give_terminal(group: int) -> None:
    earlier = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with contextlib.suppress(OSError):  # the terminal is gone
            os.tcsetpgrp(0, group)
    finally:
        signal.signal(signal.SIGTTOU, earlier)
