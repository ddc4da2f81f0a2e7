from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import suite_time

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def test_every_long_file_exists_and_is_named_once() -> None:
    assert [file for file in suite_time.LONGEST_FIRST if not (ROOT / file).exists()] == []
    assert len(set(suite_time.LONGEST_FIRST)) == len(suite_time.LONGEST_FIRST)


def test_long_files_come_first_and_the_others_keep_their_order() -> None:
    second, first = suite_time.LONGEST_FIRST[1], suite_time.LONGEST_FIRST[0]
    items: list[Any] = [
        SimpleNamespace(nodeid=f"{file}::test_{number}")
        for file in ("tests/z.py", second, "tests/a.py", first)
        for number in range(2)
    ]
    suite_time.arrange(items)
    files = [item.nodeid for item in items]
    assert files == [f"{file}::test_{n}" for file in (first, second, "tests/z.py", "tests/a.py") for n in range(2)]


def test_the_seconds_of_a_files_tests_are_added_up_and_the_slowest_comes_first() -> None:
    seconds = suite_time.Seconds()
    for nodeid, duration in (("a.py::x", 1.0), ("b.py::x[::1]", 4.0), ("a.py::x", 2.4), ("c.py::x", 0.2)):
        report: Any = SimpleNamespace(nodeid=nodeid, duration=duration, when="teardown", user_properties=[("cpu", 0.6)])
        seconds.pytest_runtest_logreport(report)
    assert seconds.lines() == ["     4 s     1 CPU s  b.py", "     3 s     1 CPU s  a.py"]
