"""Starts drivers as processes of their own, to be killed as a whole: Python, JVM and workers are one process group."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.spark import CONF, DAEMON, ROOT, archived_classes, python_path

PATIENCE: Final = 240.0
"""Seconds that a driver may take to end; a JVM on a busy machine starts slowly."""

STEPS: Final = ("fence", "look", "freeze", "publish", "verify", "record", "end", "ended", "done")
"""What a micro-batch goes through; a driver killed at one has not taken it, but all before it."""

Driver = subprocess.Popen[bytes]


def environment() -> dict[str, str]:
    """Return the environment of an activated virtual environment, on loopback, with a JVM and workers that start
    quickly. Spark takes settings from the JVM's properties."""
    quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-D{DAEMON}={CONF[DAEMON]}", *archived_classes()]
    inherited = {
        name: value for name, value in os.environ.items() if name != "PYSPARK_DRIVER_PYTHON"
    }  # of this process
    return {
        **inherited,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": python_path(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": " ".join(quick),
    }


def connecting() -> dict[str, str]:
    """Return the environment for whoever starts a Spark Connect server beside itself, on a port that is free."""
    return {**environment(), "SPARK_TESTING": "1"}  # otherwise it listens on 15002


class Drivers:
    """Starts drivers, and sees to it that none outlives the test. `common` is what all of them are told."""

    def __init__(self, folder: Path, **common: Any) -> None:
        self.folder = folder
        self.common = {**common, "checkpoint": str(folder / "checkpoint")}
        self.started: list[Driver] = []

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()

    def start(self, accident: tuple[str, int, str] | None = None) -> Driver:
        """One of `spark_driver`, that has an accident at a given step."""
        said = json.dumps({**self.common, "accident": accident})
        classic = self.common.get("way", "classic") == "classic"
        command = [sys.executable, "-m", "tests.workers.spark_driver", said]
        return self.run(command, environment() if classic else connecting())

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> Driver:
        """Any command, with its output in a file."""
        with (self.folder / f"driver-{len(self.started)}.log").open("wb") as log:
            driver = subprocess.Popen(
                command,
                cwd=ROOT,
                env=env or environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(driver)
        return driver

    def output(self, driver: Driver, last: int = 3000) -> str:
        return (self.folder / f"driver-{self.started.index(driver)}.log").read_text(errors="replace")[-last:]

    def finish(self, driver: Driver) -> None:
        assert driver.wait(PATIENCE) == 0, self.output(driver)

    def killed_at_each_in_turn(self, steps: Sequence[str]) -> None:
        """Each driver goes on from the checkpoint that the killed one left, and dies at the next step in its second
        batch; `done` is behind our commit and before Spark's own. The last one finishes."""
        for step in steps:
            driver = self.start((step, 1, "kill"))
            assert driver.wait(PATIENCE) == -signal.SIGKILL, self.output(driver)
        self.finish(self.start())

    def wait_for(self, path: Path, driver: Driver) -> None:
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert driver.poll() is None and time.monotonic() < deadline, self.output(driver)
            time.sleep(0.05)  # another process makes it; there is nothing else to await

    def wait_for_output(self, said: str, driver: Driver) -> None:
        deadline = time.monotonic() + PATIENCE
        while said not in self.output(driver, 100_000):
            assert driver.poll() is None and time.monotonic() < deadline, self.output(driver)
            time.sleep(0.05)  # what it prints is all there is to wait for

    @staticmethod
    def kill(driver: Driver) -> None:
        """SIGKILL to the whole group, and gone when this returns."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    def kill_all(self) -> None:
        for driver in self.started:
            self.kill(driver)
