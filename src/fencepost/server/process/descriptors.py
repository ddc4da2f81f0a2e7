"""The process's file descriptors: the limit on open files, which connections and segment files share, and stdin,
stdout and stderr.

A server that reopens a file for each batch spends more time on that than on anything else: with more partitions in use
than `open_files`, every batch closes the file that will be needed next. So the default is as many as there are
partitions in most servers, and the limit of the process decides.
"""

from __future__ import annotations

import os
import sys
from typing import Final

_ENOUGH: Final = 65_536
_OWN_FILES: Final = 64
"""The store, the loop, listening sockets, files of snapshots and indexes that are open for a moment."""
_UNKNOWN: Final = 1024
"""Where the system does not tell."""


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


def are_left() -> bool:
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
