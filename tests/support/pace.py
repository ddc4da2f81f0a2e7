"""How long the suite takes: the order in which xdist hands out the files, and a table of the slowest ones.

With `--dist loadfile` a worker takes the next file when it is nearly through with its own. The long ones come first, so
that none is left for the end, when the other workers have nothing to do. Files that start Spark keep both cores busy
and the others mostly wait, so the two kinds alternate; the first one of Spark makes the archive of classes that all of
them use.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from typing import Final

import psutil
import pytest

LONGEST_FIRST: Final = (
    "tests/spark/test_writer_kills.py",
    "tests/fault/test_use_cases.py",
    "tests/spark/test_crashes.py",
    "tests/integration/test_demo.py",
    "tests/spark/test_origins.py",
    "tests/fault/test_cluster.py",
    "tests/spark/test_windows.py",
    "tests/fault/test_crash.py",
    "tests/spark/test_examples.py",
    "tests/fault/test_maintenance_faults.py",
    "tests/spark/test_platform.py",
    "tests/compat/test_spark_connector.py",
    "tests/spark/test_sink.py",
    "tests/fault/test_torn_transactions.py",
    "tests/spark/test_writer_crashes.py",
    "tests/compat/test_secured_clients.py",
    "tests/spark/test_ways_in.py",
    "tests/fault/test_own_as_flock.py",
    "tests/spark/test_writer_jobs.py",
    "tests/integration/test_docs.py",
    "tests/spark/test_connect.py",
    "tests/compat/test_groups_java.py",
    "tests/spark/test_copy_command.py",
    "tests/compat/test_transactions_java.py",
    "tests/spark/test_writer_stage.py",
    "tests/compat/test_java.py",
    "tests/spark/test_writer.py",
    "tests/integration/test_cli.py",
    "tests/spark/test_writer_commits.py",
    "tests/fault/test_stopped_leader.py",
    "tests/spark/test_docs.py",
    "tests/fault/test_stopped_node.py",
    "tests/spark/test_workers.py",
    "tests/fault/test_transactions_steps.py",
    "tests/spark/test_missing_package.py",
    "tests/fault/test_lost_broker.py",
    "tests/spark/test_copy.py",
    "tests/integration/test_examples.py",
    "tests/spark/test_security.py",
    "tests/integration/test_own_cli.py",
    "tests/spark/test_runner.py",
    "tests/integration/test_own_kafka.py",
    "tests/spark/test_interrupt.py",
    "tests/unit/wire/test_messages.py",
    "tests/unit/wire/test_hot.py",
    "tests/unit/kernel/test_batch_fuzz.py",
    "tests/unit/log/compaction/test_job.py",
)
"""More than half a minute each when they were written down. `make test` prints the present ones."""

_SHOWN: Final = 25
_CPU_PROPERTY: Final = "cpu"
_CPU_BEFORE: Final = pytest.StashKey[float]()


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests by file, the long files first and the others in the order in which they were found."""
    ranks = {file: rank for rank, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def _cpu_seconds(item: pytest.Item) -> float:
    """Return what this process and its children have used. The JVM of a Spark session lives on: it is asked itself."""
    used = os.times()
    total = used.user + used.system + used.children_user + used.children_system
    if item.get_closest_marker("spark") is not None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it may end at any moment
                times = child.cpu_times()
                total += times.user + times.system
    return total


def begin(item: pytest.Item) -> None:
    item.stash[_CPU_BEFORE] = _cpu_seconds(item)


def end(item: pytest.Item) -> None:
    """Note the CPU seconds of a test where the report of its tear-down carries them to the controller."""
    if _CPU_BEFORE in item.stash:
        used = _cpu_seconds(item) - item.stash[_CPU_BEFORE]
        item.user_properties.append((_CPU_PROPERTY, max(0.0, used)))


class Seconds:
    """The plugin that adds up the seconds of each file; registered in the controller only."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cpu: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration
        if report.when == "teardown":
            self._cpu[file] += sum(float(str(value)) for name, value in report.user_properties if name == _CPU_PROPERTY)

    def lines(self) -> list[str]:
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])
        shown = [item for item in slowest if item[1] >= 1][:_SHOWN]
        return [f"{seconds:6.0f} s {self._cpu[file]:5.0f} CPU s  {file}" for file, seconds in shown]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if lines := self.lines():
            terminalreporter.section("slowest files")
            for line in lines:
                terminalreporter.write_line(line)
