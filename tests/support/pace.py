"""How long the suite takes: the order in which xdist hands out the files, and a table of the slowest ones.

With `--dist loadfile` a worker takes the next file when it is nearly through with its own. The long ones come first, so
that none is left for the end, when the other workers have nothing to do. Files that start Spark keep both cores busy
and the others mostly wait, so the two kinds alternate; the first one of Spark makes the archive of classes that all of
them use.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

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

_SHOWN: Final = 15


def arrange(items: list[pytest.Item]) -> None:
    """Sort the tests by file, the long files first and the others in the order in which they were found."""
    ranks = {file: rank for rank, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


class Seconds:
    """The plugin that adds up the seconds of each file; registered in the controller only."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def lines(self) -> list[str]:
        slowest = sorted(self._seconds.items(), key=lambda item: -item[1])[:_SHOWN]
        return [f"{seconds:6.0f} s  {file}" for file, seconds in slowest if seconds >= 1]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if lines := self.lines():
            terminalreporter.section("slowest files")
            for line in lines:
                terminalreporter.write_line(line)
