"""An allocator setting: keep freed memory for the next request instead of returning it to the system.

The server allocates and frees thousands of blocks of megabytes for requests and answers. glibc returns such blocks to
the kernel, which must then fault in and zero every page again: measured, a quarter of the CPU time of a server with
readers. So blocks up to some size come from the heap, and the heap keeps a bounded reserve.

Only for a process that is a server and nothing else, because the setting affects the whole process.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

# From glibc's malloc.h; other C libraries have no mallopt, or ignore it.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_FROM_HEAP_UP_TO: Final = 32 * 1024 * 1024
"""glibc's own upper limit for blocks that come from the heap."""
_RESERVE: Final = 64 * 1024 * 1024


def keep_freed_memory() -> None:
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP_UP_TO)
    mallopt(_M_TRIM_THRESHOLD, _RESERVE)
