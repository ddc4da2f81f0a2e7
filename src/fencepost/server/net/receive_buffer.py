"""The buffer that the connections of one loop receive into.

On Linux and macOS the loop gets, fills and hands over the buffer in one step, so its connections can share one. Loops
in other threads need their own: uvloop reads sockets without the GIL, and two servers in one process would overwrite
each other's requests.
"""

from __future__ import annotations

import sys
import threading


class ReceiveBuffers(threading.local):
    """One buffer per thread, made at its first use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._shared = memoryview(bytearray(size))

    def for_connection(self) -> memoryview:
        """Return the buffer for a connection of this thread's loop. On Windows each connection has its own."""
        return memoryview(bytearray(self._size)) if sys.platform == "win32" else self._shared
