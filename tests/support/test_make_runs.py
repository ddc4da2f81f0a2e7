from __future__ import annotations

from typing import Any

import pytest

from tests.support import make_runs

pytestmark = pytest.mark.unit


class Item:
    """A test with parameters, as far as `mark_long` looks at it."""

    def __init__(self, nodeid: str, *named: str) -> None:
        self.nodeid = nodeid
        self.callspec = type("CallSpec", (), {"id": nodeid.partition("[")[2].removesuffix("]")})
        self.marks = [pytest.mark.every_run(*named).mark] if named else []

    def get_closest_marker(self, name: str) -> Any:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.marks.append(marker.mark)


def test_parameters_that_every_run_does_not_name_are_long() -> None:
    items: list[Any] = [Item("a.py::t[x-1]", "x-1"), Item("a.py::t[y-1]", "x-1"), Item("a.py::other[y-1]")]
    make_runs.mark_long(items, whole=True)
    assert [item.get_closest_marker("long") is not None for item in items] == [False, True, False]


def test_a_parameter_that_does_not_exist_is_an_error_when_all_were_collected() -> None:
    items: list[Any] = [Item("a.py::t[x]", "x", "z")]
    make_runs.mark_long(items, whole=False)  # the others may just not have been asked for
    with pytest.raises(pytest.UsageError, match=r"do not exist: a\.py::t\[z\]"):
        make_runs.mark_long(items, whole=True)
