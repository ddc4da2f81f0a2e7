"""Settings of the process: the interpreter and the allocator, for a process that is a server and nothing else, and the
limit on open files, which connections and segment files share.

A server that reopens a file for each batch spends more time on that than on anything else: with more partitions in use
than `open_files`, every batch closes the file that will be needed next. So the default is as many as there are
partitions in most servers, and the limit of the process decides.
"""

from __future__ import annotations

import ctypes
import gc
import os
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

_ENOUGH: Final = 65_536
_OWN_FILES: Final = 64
"""The store, the loop, listening sockets, files of snapshots and indexes that are open for a moment."""
_UNKNOWN: Final = 1024
"""Where the system does not tell."""


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


# -- open files ----------------------------------------------------------------------------------------------------


def open_standard_files() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr, as some supervisors start a process. Otherwise a
    socket gets that number, and libuv aborts the process when it closes one of these three."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def allow_many_files() -> None:
    """Raise the limit to what the system allows. Only for a process that is a server and nothing else: a program that
    uses `select` cannot have more than 1024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS has a lower limit than it says
            return


def most_segment_files(wanted: int) -> int:
    """Return the number of segment files to keep open: `wanted`, but at most half of what the process may open."""
    limit = _limit()
    return wanted if limit is None else max(1, min(wanted, limit // 2))


def most_connections(wanted: int, segment_files: int, others: int) -> int:
    """Return the number of connections to accept: `wanted`, but not so many that the logs cannot open their files.
    `others` are connections of another kind, beside the descriptors that every server needs."""
    limit = _limit()
    return wanted if limit is None else max(1, min(wanted, limit - segment_files - others - _OWN_FILES))


def files_are_left() -> bool:
    """Tell if the process can open another file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


def _limit() -> int | None:
    """Return how many files the process may open; None: no limit."""
    if sys.platform == "win32":
        return _UNKNOWN
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
