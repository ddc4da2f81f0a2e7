"""Settings of the interpreter and the allocator, for a process that is a server and nothing else: they affect the whole
process."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

_SWITCH_SECONDS: Final = 0.001
_OLDEST: Final = 2
_WHOLE_SECONDS: Final = 3600.0

# From glibc's malloc.h; other C libraries have no mallopt, or ignore it.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_FROM_HEAP_UP_TO: Final = 32 * 1024 * 1024
"""glibc's own upper limit for blocks that come from the heap."""
_RESERVE: Final = 64 * 1024 * 1024


def switch_threads_soon() -> None:
    """Keep waits for the interpreter's lock short, however busy the loop is.

    A thread that wants the lock asks for it after the switch interval, Python's default for which is 5 ms. The count
    starts anew whenever another thread has taken the lock, and the loop drops and retakes it with every system call. So
    beside a busy loop and a busy codec thread, the thread that syncs the logs waited for more than a hundred turns of
    the loop, for half a second, before and after its sync: a client's record waited for it. With a short interval it
    waits for a few milliseconds. It costs nothing while no thread waits.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


class _ShortCollections:
    def __init__(self) -> None:
        self._whole_at = monotonic()

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif monotonic() - self._whole_at > _WHOLE_SECONDS:
            self._whole_at = monotonic()
            gc.unfreeze()


def keep_collections_short() -> None:
    """Keep garbage collections short, however many objects the server keeps.

    A full collection of Python looks at every live object: with 10,000 open logs, or 100,000 remembered producers, it
    stops the loop for 200 to 300 ms. Almost all of these objects live long, and their reference counts free them. So
    the objects that exist now, and whatever survives a full collection later, are set aside (`gc.freeze`), and the next
    one looks only at newer objects. At most once an hour, a collection of everything finds the cycles among objects
    that were set aside.
    """
    if not any(isinstance(callback, _ShortCollections) for callback in gc.callbacks):
        gc.callbacks.append(_ShortCollections())
        gc.freeze()


def keep_freed_memory() -> None:
    """Keep freed memory for the next request instead of returning it to the system.

    The server allocates and frees thousands of blocks of megabytes for requests and answers. glibc returns such blocks
    to the kernel, which must then fault in and zero every page again: measured, a quarter of the CPU time of a server
    with readers. So blocks up to some size come from the heap, and the heap keeps a bounded reserve.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_UP_TO)
    mallopt(_M_TRIM_THRESHOLD, _RESERVE)
