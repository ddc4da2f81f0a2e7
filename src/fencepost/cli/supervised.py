"""A command in a process group of its own, which ends as a whole: when it is told to, and when we are killed.

What a shell script starts is in its group too, and would go on without it. `Supervised.end` sends SIGTERM to the group,
and SIGKILL to what is left of it after the time of grace. SIGTERM and SIGHUP to us end the group in the same way, so
that whatever is to be given back afterwards is given back after the command's last act; Ctrl-C is handed on, and the
command decides. If we are killed with -9 the watcher of `launch.py` kills the group, and if we are stopped for longer
than the session it ends it: `alive` is called for every sign of life.

At a terminal the group has the foreground for as long as it runs, and job control works: when Ctrl-Z stops the command,
we stop with it, and go on together.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

_LAUNCH: Final = Path(__file__).with_name("launch.py")
_POLL: Final = 0.02


class Supervised:
    """One run of one command. Made, run and interrupted on the main thread; `end` may come from any."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, grace: float, session: float = 0.0
    ) -> None:
        self._command = command
        self._environment = environment
        self._grace = grace
        self._session = session
        self._lifeline: int | None = None
        self._group = 0
        self._at_terminal = _has_terminal()
        self._over = False
        self._ending: threading.Thread | None = None
        # Guards `_ending`: the one who loses what is owned and the one who is told to stop may come together.
        self._lock = threading.Lock()
        self.stopped_by: signal.Signals | None = None
        """The signal that told us to end the command."""

    def run(self, lost: threading.Event) -> int:
        """Runs the command, until it ends by itself or, once `lost` is set, is ended. Its exit code, as a shell says
        it: 128 + N if it was ended by signal N."""
        with self._signals(), _lifeline() as (theirs, ours):
            self._lifeline = ours
            how = [str(theirs), str(int(self._at_terminal)), str(self._session), str(self._grace)]
            words = [sys.executable, "-IS", str(_LAUNCH), *how, *self._command]
            child = subprocess.Popen(words, env=dict(self._environment), process_group=0, pass_fds=(theirs,))
            os.close(theirs)
            self._group = child.pid
            if self.stopped_by is not None:  # before there was anything to end
                self.end()
            threading.Thread(target=self._end_when, args=(lost,), daemon=True).start()
            child.returncode = code = self._wait(child.pid)
            if lost.is_set() or self.stopped_by is not None:
                self.end()
            self._over = True
            if self._ending is not None:
                self._ending.join()  # what the command has started may take longer than itself
            with self._lock:
                self._lifeline = None  # from here on nobody else writes to it
            with contextlib.suppress(BrokenPipeError):
                os.write(ours, b".")
        return code if code >= 0 else 128 - code

    def alive(self) -> None:
        """From any thread: what is owned is owned still. Without this for a session, the watcher ends the group."""
        with self._lock, contextlib.suppress(BrokenPipeError, BlockingIOError):
            if self._lifeline is not None:
                os.write(self._lifeline, b"+")

    def end(self) -> None:
        """Begins to end the whole group; `run` returns when it is gone."""
        with self._lock:
            if self._group and not self._over and self._ending is None:
                self._ending = threading.Thread(target=self._end_group, daemon=True)
                self._ending.start()

    def _end_when(self, lost: threading.Event) -> None:
        lost.wait()
        self.end()

    def _end_group(self) -> None:
        self._signal_group(signal.SIGTERM)
        self._signal_group(signal.SIGCONT)  # one that is stopped hears the other only then
        deadline = time.monotonic() + self._grace
        while self._signal_group(0):
            if time.monotonic() >= deadline:
                self._signal_group(signal.SIGKILL)
                return
            time.sleep(_POLL)

    def _signal_group(self, number: int) -> bool:
        """Whether there was anybody."""
        try:
            os.killpg(self._group, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # macOS says so of a group that has nothing but zombies
            return False
        return True

    # -- what comes from outside ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        before = {}
        for number, handler in (
            (signal.SIGTERM, self._told_to_stop),
            (signal.SIGHUP, self._told_to_stop),
            (signal.SIGINT, self._interrupted),
        ):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                before[number] = signal.signal(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    def _told_to_stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped_by = signal.Signals(number)
        # Not here: a handler may run while this very thread holds the lock.
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
        """The command was stopped with Ctrl-Z: so are we, and the shell has the terminal, until it wakes us."""
        _give_terminal(os.getpgrp())
        os.kill(0, signal.SIGTSTP)
        if _has_terminal():  # `fg`, not `bg`
            _give_terminal(self._group)
        self._signal_group(signal.SIGCONT)


@contextlib.contextmanager
def _lifeline() -> Iterator[tuple[int, int]]:
    """A pipe: the watcher's end, which the caller closes, and ours."""
    theirs, ours = os.pipe()
    try:
        yield theirs, ours
    finally:
        os.close(ours)


def _has_terminal() -> bool:
    """Whether we are what the person at the terminal talks to. Not with our output in a pipe: what reads it there may
    want the keyboard, as a pager does."""
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
