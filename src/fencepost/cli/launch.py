"""A script that `fencepost own` starts: it leaves a watcher behind and then becomes the command.

    python -IS launch.py PIPE TERMINAL END GRACE COMMAND ARGUMENT…

The process already leads its own process group. It takes the terminal if TERMINAL is 1, forks the watcher, and executes
the command. The watcher reads PIPE, whose other end only `fencepost own` holds:

    .      the command has ended; the watcher exits.
    +      a heartbeat was answered, followed by the new END of the lease (a double; by the monotonic clock, which all
           processes of a machine share; infinity: no limit). At that moment `fencepost own` is stopped or cut off,
           and somebody else may own. The watcher ends the group: SIGTERM, and SIGKILL after GRACE seconds.
    EOF    `fencepost own` was killed, so others may own its resources already. The watcher kills the group at once.

PR_SET_PDEATHSIG would cover EOF on Linux, but only for one process, not for its children.

It is a separate script, because `fencepost own` runs threads, and Python code between fork and exec could then hang.
"""

from __future__ import annotations

import math
import os
import select
import signal
import struct
import sys
import time


def main() -> None:
    pipe, terminal, end, grace, *command = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C before exec
    if terminal == "1":
        _take_terminal()
    _leave_watcher(int(pipe), os.getpid(), float(end), float(grace))
    try:
        os.execvp(command[0], command)  # noqa: S606 - running the user's command is the purpose
    except FileNotFoundError:
        _end(f"{command[0]}: no such command", 127)  # the exit codes that shells use
    except OSError as error:
        _end(f"{command[0]} cannot be run: {error.strerror}", 126)


def _take_terminal() -> None:
    """Put the command into the foreground, so that it gets the input, Ctrl-C and Ctrl-Z."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # tcsetpgrp from the background raises it
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)


def _leave_watcher(pipe: int, group: int, end: float, grace: float) -> None:
    """Fork the watcher as a grandchild: the command must not get a child that it did not start."""
    between = os.fork()
    if between == 0:
        if os.fork() == 0:
            _watch(pipe, group, end, grace)
        os._exit(0)
    os.waitpid(between, 0)
    os.close(pipe)


def _watch(pipe: int, group: int, end: float, grace: float) -> None:
    os.setsid()  # ignore the signals of the group and of the terminal
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # readers of the command's output must see its end
        os.dup2(nowhere, stream)
    while True:
        left = None if end == math.inf else max(0.0, end - time.monotonic())
        if not select.select([pipe], [], [], left)[0]:
            end_group(group, grace)
            return
        said = os.read(pipe, 1)
        if not said:
            os.killpg(group, signal.SIGKILL)
        if said != b"+":
            return
        (end,) = struct.unpack("d", os.read(pipe, 8))  # written with the sign, in one piece


def end_group(group: int, grace: float) -> None:
    """Send SIGTERM to the group, and SIGKILL to what is left of it after `grace` seconds."""
    deadline = time.monotonic() + grace
    try:
        os.killpg(group, signal.SIGTERM)
        os.killpg(group, signal.SIGCONT)  # a stopped process handles SIGTERM only after this
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # the group has ended; on macOS, it has only zombies


def _end(message: str, code: int) -> None:
    print(f"fencepost: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
