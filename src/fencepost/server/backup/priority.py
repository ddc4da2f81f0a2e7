"""The priority of a backup's process: the server and its clients go first."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from typing import Final

_NICENESS: Final = 10
"""A tenth of the weight of others. With the highest, 19, a backup on a busy machine would hardly ever end."""
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""Numbers of the system call, for which the C library has no function."""
_THIS_PROCESS: Final = 1
_IDLE: Final = 3 << 13
"""The class of requests that the disk gets when it has no others; not every I/O scheduler knows it."""


def let_others_go_first() -> None:
    """Lower the priority of this process for the CPU and for the disk, until it ends."""
    with suppress(OSError, AttributeError):
        os.nice(_NICENESS)
    number = _IOPRIO_SET.get(platform.machine())
    if sys.platform == "linux" and number is not None and sys.maxsize > 2**32:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, _THIS_PROCESS, 0, _IDLE)
