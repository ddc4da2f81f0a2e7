"""The servers under measurement: fencepost's, as a user starts it, and Apache Kafka, as its own script starts it."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import psutil

from bench.web_pages import is_ready
from tests.support.kafka import KafkaBroker, answers
from tests.support.process import Child, free_port

KAFKA: Final = "kafka"
OS: Final = "fencepost os"
ALWAYS: Final = "fencepost always"

_READY_SECONDS: Final = 120
_HOST: Final = "127.0.0.1"

# What Kafka's own start script passes to the JVM; the broker that tests use is trimmed to start fast, this one is not.
_KAFKA_JVM: Final = [
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
]
_KAFKA_SETTINGS: Final = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "log.cleaner.dedupe.buffer.size": 128 << 20,
    "auto.create.topics.enable": "false",
    # A topic's files go when it is deleted, not a minute later, in the middle of somebody else's run.
    "log.segment.delete.delay.ms": 100,
    # The first write to a partition's index file reads ahead. Where the disk reads far ahead (8 MiB), that fills most
    # of the file, 10 MiB by default, with zeros, and costs more than the records of a small topic.
    "log.index.size.max.bytes": 1 << 18,
}


class Broker(Protocol):
    """A server with a data directory of its own; it can be killed and started again."""

    name: str

    @property
    def address(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> float:
        """Starts it and answers with the seconds from the process's start to the first answered request."""
        ...

    def stop(self) -> None:
        """SIGTERM, and waits for the end."""

    def kill(self) -> None:
        """SIGKILL."""

    def remove(self) -> None:
        """Kills it if it runs, and deletes its data."""


class Kafka:
    def __init__(self, folder: Path, name: str = KAFKA) -> None:
        self.name = name
        self._folder = folder
        self._broker = KafkaBroker(folder, _KAFKA_SETTINGS, jvm=_KAFKA_JVM)
        self._formatted = False

    @property
    def address(self) -> str:
        return self._broker.address

    @property
    def pid(self) -> int:
        return self._broker.pid

    def start(self) -> float:
        if not self._formatted:
            self._broker.format()  # done once in a cluster's life, so it does not count
            self._formatted = True
        began = time.perf_counter()
        self._broker.launch()
        return time.perf_counter() - began

    def stop(self) -> None:
        self._broker.shut_down()

    def kill(self) -> None:
        self._broker.stop()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class Fencepost:
    """`fencepost serve`, with `--sync os` or `--sync always`."""

    def __init__(
        self,
        folder: Path,
        sync: str,
        *,
        name: str | None = None,
        open_files: int | None = None,
        arguments: Sequence[str] = (),
        source: Path | None = None,
    ) -> None:
        """`source`: a folder that holds another fencepost."""
        self.name = name or f"fencepost {sync}"
        self._folder = folder
        self._port = free_port()
        self._child: Child | None = None
        # An installed package has its bytecode beside it; a checkout, or a shell that forbids to write any, has not.
        self._environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode")}
        # Several servers run at once, and only one can have the default port. Older commits do not know the variable.
        self._http_port = free_port()
        self._environment["FENCEPOST_HTTP_ADDRESS"] = f"{_HOST}:{self._http_port}"
        self._began = 0.0
        if source is not None:
            self._environment["PYTHONPATH"] = str(source)
        serve = [sys.executable, "-m", "fencepost", "serve", "--data", str(self.data), "--sync", sync]
        self._command = [*serve, "--listen", self.address, "--no-auto-create", *arguments]
        if open_files is not None:
            self._command = ["sh", "-c", f'ulimit -n {open_files} && exec "$@"', "sh", *self._command]

    @property
    def address(self) -> str:
        return f"{_HOST}:{self._port}"

    @property
    def http(self) -> str:
        return f"http://{_HOST}:{self._http_port}"

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._child.pid

    def start(self) -> float:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._began = time.perf_counter()
        self._child = Child(self._command, log=self._folder / "server.log", env=self._environment)
        return self._wait(lambda: answers(self._port))

    def start_http(self) -> float:
        """Waits until a started server is ready by HTTP, and answers with the seconds since the process's start."""
        return self._wait(lambda: is_ready(self.http))

    def _wait(self, is_up: Callable[[], bool]) -> float:
        assert self._child is not None
        while not is_up():
            if self._child.exit_code is not None or time.perf_counter() - self._began > _READY_SECONDS:
                raise RuntimeError(f"{self.name} did not come up:\n{self._child.output()}")
            time.sleep(0.002)
        return time.perf_counter() - self._began

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def resident_mib(broker: Broker) -> float:
    return psutil.Process(broker.pid).memory_info().rss / (1 << 20)


def cpu_seconds(broker: Broker) -> float:
    times = psutil.Process(broker.pid).cpu_times()
    return times.user + times.system
