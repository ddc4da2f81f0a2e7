"""Short waits for the interpreter's lock, however busy the loop is.

A thread that wants the lock asks for it after the switch interval, Python's default for which is 5 ms. The count starts
anew whenever another thread has taken the lock, and the loop drops and retakes it with every system call. So beside a
busy loop and a busy codec thread, the thread that syncs the logs waited for more than a hundred turns of the loop, for
half a second, before and after its sync: a client's record waited for it. With a short interval it waits for a few
milliseconds. It costs nothing while no thread waits.

Only for a process that is a server and nothing else, because the setting affects the whole process.
"""

from __future__ import annotations

import sys
from typing import Final

_SECONDS: Final = 0.001


def switch_threads_soon() -> None:
    sys.setswitchinterval(_SECONDS)
