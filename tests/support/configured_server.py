"""A server that `fencepost serve --config` has started, and the commands that speak to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_INSIDE = "[listeners.inside]\naddress = '127.0.0.1:0'\n"


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a `fencepost` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "fencepost", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def write_config(file: Path, text: str, listeners: str = _INSIDE) -> None:
    file.write_text(f"data = 'kept'\nsync = 'os'\n{text}\n{listeners}")


class Serving(NamedTuple):
    process: subprocess.Popen[str]
    address: str
    data: str
    log: Path
    ready: dict[str, Any]
    """The line that the server printed when it was ready."""

    def reload(self, expect: int = 0) -> dict[str, list[str]]:
        """Run `fencepost config reload` and return what it says."""
        done = run("config", "reload", "--data", self.data, "--json")
        assert done.returncode == expect, done.stdout + done.stderr
        outcome: dict[str, list[str]] = json.loads(done.stdout)
        return outcome


@contextmanager
def serve(file: Path) -> Iterator[Serving]:
    log = file.parent / "log"
    with log.open("w") as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "fencepost", "serve", "--config", file, "--json"],
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        ready = json.loads(line)
        try:
            yield Serving(process, ready["address"], ready["data"], log, ready)
        finally:
            process.terminate()
