"""The longest turn of an embedded server's loop, in processor time of its thread: what else the machine does, and other
threads of the process, hardly count."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Final, Self

import fencepost

_TICK_SECONDS: Final = 0.001
_SAMPLE_SECONDS: Final = 0.01


class LoopWatch:
    """Watches the loop of an embedded server inside a `with` block."""

    def __init__(self, server: fencepost.Server) -> None:
        loop = server._loop
        assert loop is not None, "watch a server that runs in this process"
        self._loop: asyncio.AbstractEventLoop = loop
        self._thread = 0
        self._last = 0.0
        self._watching = False
        self._ticks = 0
        self.longest = 0.0
        """Seconds of processor time of the longest turn since the last `reset`."""
        self.stack = ""
        """Where the loop was in a long turn."""

    def __enter__(self) -> Self:
        self._watching = True
        begun = threading.Event()
        self._loop.call_soon_threadsafe(self._begin, begun)
        begun.wait()
        threading.Thread(target=self._sample, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching = False

    def reset(self) -> None:
        self.settle()
        self.longest, self.stack = 0.0, ""

    def settle(self) -> float:
        """Wait until the turn that is under way has ended, and return the longest."""
        ended = threading.Event()
        self._loop.call_soon_threadsafe(lambda: self._loop.call_later(2 * _TICK_SECONDS, ended.set))
        ended.wait()
        return self.longest

    def _begin(self, begun: threading.Event) -> None:
        self._thread = threading.get_ident()
        self._last = time.thread_time()
        self._loop.call_later(_TICK_SECONDS, self._tick)
        begun.set()

    def _tick(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._last)
        self._last = now
        self._ticks += 1
        if self._watching:
            self._loop.call_later(_TICK_SECONDS, self._tick)

    def _sample(self) -> None:
        """Remember where the loop is when it has not ticked for two samples."""
        seen, longest = -1, 0.0
        while self._watching:
            time.sleep(_SAMPLE_SECONDS)
            frame = sys._current_frames().get(self._thread)
            if self._ticks == seen and frame is not None and self.longest >= longest:
                text = "".join(traceback.format_stack(frame)[-6:])
                if "run_forever" not in text.splitlines()[-2]:
                    self.stack, longest = text, self.longest
            seen = self._ticks
