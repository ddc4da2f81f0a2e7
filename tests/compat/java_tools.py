"""The tools of Kafka's distribution, all in one JVM: `java/Tools.java` runs them, a test only says which and how."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.kafka import java

JAVA: Final = Path(__file__).parent / "java"

TOPICS: Final = "org.apache.kafka.tools.TopicCommand"
GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS: Final = "kafka.admin.ConfigCommand"

SECONDS: Final = 60
"""After so long a tool counts as stuck."""


class Said(NamedTuple):
    """What a tool printed, and how it ended."""

    exit: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Run = Callable[..., Said]
"""Runs a tool against the server."""


class Tools:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def run(self, tool: str, *arguments: str | Path, stdin: str = "", expect: int = 0) -> Said:
        """Runs a tool, to its end; it has to end with the code expected."""
        commands, answers = self._process.stdin, self._process.stdout
        assert commands is not None and answers is not None
        command = {"tool": tool, "arguments": [str(argument) for argument in arguments], "input": stdin}
        commands.write(json.dumps(command) + "\n")
        commands.flush()
        stuck = threading.Timer(SECONDS, self._process.kill)
        stuck.start()
        line = answers.readline()
        stuck.cancel()
        assert line, f"{tool} was stuck, or took the JVM with it"
        said = Said(**json.loads(line))
        assert said.exit == expect, f"{tool} ended with {said.exit}:\n{said.out[-3000:]}\n{said.error[-3000:]}"
        return said


@contextmanager
def running_tools(log: Path, *options: str) -> Iterator[Tools]:
    """A JVM with these options that waits for commands; `log` takes what it complains of before the first."""
    with log.open("wb") as complaints:
        process = subprocess.Popen(
            java(*options, JAVA / "Tools.java"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
    with process:
        try:
            yield Tools(process)
        finally:
            process.kill()
