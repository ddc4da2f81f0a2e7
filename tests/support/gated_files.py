"""Files whose syncs wait until the test lets them through."""

from __future__ import annotations

import threading

from fencepost.log.files import OsFiles


class GatedFiles(OsFiles):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        """Somebody stands in front of the closed gate."""

    def sync(self, fd: int) -> None:
        if not self.gate.is_set():
            self.waiting.set()
        assert self.gate.wait(60)
        super().sync(fd)
