"""How long the suite takes: how xdist hands out the files, and a table of the slowest ones.

A worker takes the next file when it is nearly through with its own. The long ones come first, so that none is left for
the end, when the other workers have nothing to do. The files of Spark are two shares, each with one session for all of
its tests: every further session would cost a JVM and the time until it is warm. The files of the console are one share,
with one browser.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from typing import Final

import psutil
import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST: Final = (
    "tests/spark/",
    "tests/browser/",
    "tests/fault/test_use_cases.py",
    "tests/integration/test_demo.py",
    "tests/integration/test_packaging.py",
    "tests/compat/test_spark_sources.py",
    "tests/fault/test_cluster.py",
    "tests/fault/test_crash.py",
    "tests/compat/test_spark_connector.py",
    "tests/compat/test_secured_clients.py",
    "tests/fault/test_torn_transactions.py",
    "tests/fault/test_stopped_node.py",
    "tests/fault/test_stopped_leader.py",
    "tests/integration/test_reader_groups.py",
    "tests/fault/test_own_as_flock.py",
    "tests/integration/test_docs.py",
    "tests/integration/test_backup.py",
    "tests/integration/test_migrate_gaps.py",
    "tests/compat/test_groups_java.py",
    "tests/integration/test_sasl.py",
    "tests/fault/test_backup_faults.py",
    "tests/integration/test_reload.py",
    "tests/integration/test_cli.py",
    "tests/fault/test_transactions_steps.py",
    "tests/fault/test_shared_topic.py",
    "tests/fault/test_lost_broker.py",
    "tests/integration/test_unclosed.py",
    "tests/fault/test_maintenance_faults.py",
    "tests/hostile/test_answers.py",
    "tests/model/test_commit_model.py",
    "tests/unit/wire/test_messages.py",
)
"""Files (or folders) of more than half a minute when they were written down. `make test` prints the present ones."""

_BROWSER: Final = "tests/browser/"
_SPARK: Final = "tests/spark/test_"
_SHOWN: Final = 25
_CPU_PROPERTY: Final = "cpu"
_CPU_BEFORE: Final = pytest.StashKey[float]()


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests by file, the long files first and the others in the order in which they were found."""
    ranks = {file: rank for rank, file in enumerate(LONGEST_FIRST)}

    def rank(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return ranks.get(file, ranks.get(f"{file.rpartition('/')[0]}/", len(ranks)))

    items.sort(key=rank)


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """A file is one worker's, the files of the console are one worker's, and the files of Spark are two workers'."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(_BROWSER):
            return _BROWSER
        if not file.startswith(_SPARK):
            return file
        first_half = file.removeprefix(_SPARK) < "s"
        return f"Spark, {'first' if first_half else 'second'} half"


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
