"""An accident in the process that commits a micro-batch for `format("fencepost")`: the option onStep names `on_step`.

The driver says in FENCEPOST_TEST_ACCIDENT, as JSON, what is to happen: the step, the number of the batch since the
driver started, kill, stop or a path as in `spark_driver`, the driver's process group, and a folder for notes. A commit
process is not in the driver's process group: PySpark gives its workers one of their own.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Final

import psutil

VARIABLE: Final = "FENCEPOST_TEST_ACCIDENT"


def note_for(process: int) -> Path:
    """Return the file in which a test process notes, as JSON, where `pause` waits: the step, the batch and a path."""
    return Path(tempfile.gettempdir()) / f"fencepost-pause-{process}.json"


def pause(step: str, batch: int) -> None:
    """Wait at the step that the test process has noted, the first time, from the noted batch on.

    For a session that several tests share."""
    if (path := _noted(step, batch)) is not None:
        from tests.workers.spark_driver import wait_at

        wait_at(path)


def kill_this_process(step: str, batch: int) -> None:
    """Kill the process that commits, and nothing else, where `pause` would wait."""
    if (path := _noted(step, batch)) is not None:
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _noted(step: str, batch: int) -> Path | None:
    """Return the noted path, if it is this step and the first time."""
    for parent in psutil.Process().parents():
        try:
            step_at, batch_at, path = json.loads(note_for(parent.pid).read_text())
        except FileNotFoundError:
            continue
        if step == step_at and batch >= batch_at and not Path(path).exists():
            return Path(path)
    return None


def on_step(step: str, batch: int) -> None:
    step_at, batch_at, what, driver, folder = json.loads(os.environ[VARIABLE])
    if step != step_at or _number(batch, Path(folder) / f"batches-{driver}") < batch_at:
        return
    if what in ("kill", "stop"):
        (Path(folder) / f"committing-{driver}").write_text(str(os.getpgid(0)))
        number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
        os.killpg(driver, number)
        os.killpg(0, number)
    else:
        from tests.workers.spark_driver import wait_at

        wait_at(Path(what))


def _number(batch: int, noted: Path) -> int:
    """Return how many batches this driver had before this one."""
    seen = noted.read_text().split() if noted.exists() else []
    if str(batch) not in seen:
        seen.append(str(batch))
        noted.write_text(" ".join(seen))
    return seen.index(str(batch))
