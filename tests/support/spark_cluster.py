"""A standalone cluster of Spark: a master, and a worker on each of several addresses of this machine.

Spark takes two addresses for two hosts, so it speculates here: it starts the second attempt of a task only on another
host than the first one's. In `local-cluster` all executors are on one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_PATIENCE: Final = 120.0
_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@contextlib.contextmanager
def standalone(folder: Path, hosts: Sequence[str]) -> Iterator[str]:
    """Yield the master's address. Each worker has one core and a gigabyte."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        started.append(_start(log, "master.Master", hosts[0], folder))
        master = _wait_for(log, r"Starting Spark master at (spark://\S+)")
        for host in hosts:
            log = folder / f"worker-{host}.log"
            words = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{host}"), master)
            started.append(_start(log, "worker.Worker", host, folder, *words))
        for host in hosts:
            _wait_for(folder / f"worker-{host}.log", "(Successfully registered) with master")
        yield master
    finally:
        for process in reversed(started):
            process.terminate()  # a worker ends its executors on the way
        for process in started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(log: Path, what: str, host: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = Path(found.origin).parent
    command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{what}", "--host", host]
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [*map(str, command), "--port", "0", "--webui-port", "0", *more],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def _wait_for(log: Path, said: str) -> str:
    deadline = time.monotonic() + _PATIENCE
    while (found := re.search(said, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
        time.sleep(0.05)  # what it logs is all there is to wait for
    return found[1]
