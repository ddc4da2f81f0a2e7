"""A bounded queue of lines, and the thread that writes them, so that the loop never waits for a disk or a pipe."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_LOOK_SECONDS: Final = 1.0


class LineThread(Generic[T]):
    """`write` gets the lines in order, up to `at_once` of them. `look` is called after it and every second, with the
    number of lines that were dropped since the last call, and whether it is the last call."""

    def __init__(
        self,
        name: str,
        write: Callable[[list[T]], None],
        look: Callable[[int, bool], None],
        *,
        most: int,
        at_once: int = 1,
    ) -> None:
        self._write = write
        self._look = look
        self._most = most
        self._at_once = at_once
        self._lines: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._dropped = 0  # only `put` changes it
        self._told = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, line: T, *, even_if_full: bool = False) -> None:
        """Add a line; drop and count it if the queue is full. One thread at a time may call this."""
        if self._lines.qsize() >= self._most and not even_if_full:
            self._dropped += 1
        else:
            self._lines.put(line)

    def close(self, seconds: float) -> bool:
        """Wait for the queued lines to be written; return False if that takes longer than `seconds`."""
        self._lines.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = False
        while not ended:
            lines: list[T] = []
            try:
                line = self._lines.get(timeout=_LOOK_SECONDS)
                while line is not None:
                    lines.append(line)
                    if len(lines) >= self._at_once:
                        break
                    line = self._lines.get_nowait()
                ended = line is None
            except queue.Empty:
                pass
            if lines:
                self._write(lines)
            dropped = self._dropped - self._told
            self._told += dropped
            self._look(dropped, ended)
