"""Run as a script: what happens in the new process before the command of `fencepost own` takes its place.

    python -IS launch.py PIPE TERMINAL SESSION GRACE COMMAND ARGUMENT…

The process leads a group of its own already. It takes the terminal if TERMINAL is 1, leaves a watcher behind, and
becomes the command. The watcher waits at PIPE, whose other end only `fencepost own` holds. A `.` there says that all is
well; the end without one that `fencepost own` was killed. Then what it owned is free, perhaps taken already, and the
whole group is killed at once. A `+` is a sign of life: if none comes for SESSION seconds (0: for ever), `fencepost own`
is stopped or cut off, its session is over, and the group is ended: SIGTERM, and SIGKILL after GRACE seconds. (The
kernel can be asked to do the first by PR_SET_PDEATHSIG, on Linux, for one process; not for what that one has started.)

A script by itself, because threads of `fencepost own` are running, and Python code between fork and exec may then hang.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time


def main() -> None:
    pipe, terminal, session, grace, *command = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback in these few milliseconds either
    if terminal == "1":
        _take_terminal()
    _leave_watcher(int(pipe), os.getpid(), float(session), float(grace))
    try:
        os.execvp(command[0], command)  # noqa: S606 - running what one is given is the purpose
    except FileNotFoundError:
        _end(f"{command[0]}: no such command", 127)  # both codes are a shell's
    except OSError as error:
        _end(f"{command[0]} cannot be run: {error.strerror}", 126)


def _take_terminal() -> None:
    """So that Ctrl-C, Ctrl-Z and what is typed reach the command, as if it had been called without us."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # which comes to whoever does this from the background
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)


def _leave_watcher(pipe: int, group: int, session: float, grace: float) -> None:
    """A grandchild, because the command would be surprised by a child that it has not started."""
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            _watch(pipe, group, session, grace)
        os._exit(0)
    os.waitpid(between, 0)
    os.close(pipe)


def _watch(pipe: int, group: int, session: float, grace: float) -> None:
    os.setsid()  # neither the group's signals nor the terminal's are meant for it
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # whoever reads what the command writes must see its end
        os.dup2(nowhere, stream)
    while True:
        if not select.select([pipe], [], [], session or None)[0]:
            _end_group(group, grace)
            return
        said = os.read(pipe, 1)
        if not said:
            os.killpg(group, signal.SIGKILL)
        if said != b"+":
            return


def _end_group(group: int, grace: float) -> None:
    deadline = time.monotonic() + grace
    try:
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGCONT)  # one that is stopped hears the other only then
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # it is gone


def _end(message: str, code: int) -> None:
    print(f"fencepost: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
