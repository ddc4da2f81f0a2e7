"""Pauses a commit of `format("fencepost")` at a step, in a session that tests share: see `writer_steps.pause`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.workers.writer_steps import note_for

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


class Pause:
    step: Final = "tests.workers.writer_steps:pause"
    """For the option onStep."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wait(self, query: StreamingQuery, patience: float = 120.0) -> None:
        """Wait until a commit of the query is there."""
        deadline = time.monotonic() + patience
        while not self._path.exists():
            assert query.isActive and time.monotonic() < deadline, query.exception()
            time.sleep(0.02)  # another process makes it; there is nothing else to await

    def go_on(self) -> None:
        Path(f"{self._path}.go").touch()


@contextmanager
def paused_at(step: str, path: Path, *, batch: int = 0) -> Iterator[Pause]:
    """The first commit that comes to the step waits there; `path` is a file that does not exist yet. `batch`: the
    commits of earlier batches go on."""
    note = note_for(os.getpid())
    note.write_text(json.dumps([step, batch, str(path)]))
    try:
        yield Pause(path)
    finally:
        note.unlink()
        Path(f"{path}.go").touch()
