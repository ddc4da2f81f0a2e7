"""Runs a command that must not outlive the test process that started it, even if that one is killed with -9.

    python -IS die_with_parent.py PARENT_PID COMMAND ARGUMENT…

The kernel is asked to kill this process when its parent dies (prctl PR_SET_PDEATHSIG, which survives exec), and then
the command takes this process's place. Done here rather than in a `preexec_fn`, because forking Python code in a
process that has threads is a warning in newer Pythons, and rightly so. Where there is no prctl the command runs all the
same, and `atexit` in the parent has to do.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


main()
