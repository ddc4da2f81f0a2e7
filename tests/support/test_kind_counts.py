"""The count of tests by kind, tried on small sessions of pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import kind_counts

pytestmark = pytest.mark.unit

ROOT: Final = Path(__file__).parent.parent.parent

CONFTEST: Final = """
import pytest
from tests.support import kind_counts

def pytest_configure(config):
    for kind in kind_counts.KINDS:
        config.addinivalue_line("markers", kind)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(kind_counts.Counts({floors}))

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    kind_counts.label(items)
"""

TESTS: Final = """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError

@pytest.fixture
def missing():
    pytest.skip("not here")

@pytest.mark.unit
@pytest.mark.parametrize("number", range(5))
def test_five_that_pass(number):
    pass

@pytest.mark.unit
def test_one_that_fails():
    assert False

@pytest.mark.unit
def test_one_whose_set_up_fails(broken):
    pass

@pytest.mark.integration
@pytest.mark.kafka
def test_one_of_two_kinds():
    pass

@pytest.mark.kafka
def test_one_skipped_by_its_set_up(missing):
    pass

@pytest.mark.kafka
@pytest.mark.skip
def test_one_skipped_by_a_marker():
    pass
"""


def session(folder: Path, floors: dict[str, int], *options: str, tests: str = TESTS) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST.format(floors=floors))
    (folder / "test_sample.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *options,
        str(folder),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.every_run("xdist")
@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one-process", "xdist"])
def test_tests_are_counted_in_each_of_their_kinds_and_skipped_ones_apart(tmp_path: Path, options: list[str]) -> None:
    _, said = session(tmp_path, {}, *options)
    assert "tests that ran: unit 7, integration 1, kafka 1 (2 skipped)\n" in said
    assert "failed" in said.splitlines()[-1]  # pytest's own word stays the last


ONLY_GOOD: Final = """
import pytest

@pytest.mark.unit
@pytest.mark.parametrize("number", range(4))
def test_fine(number):
    pass
"""


@pytest.mark.every_run("one-process")
@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one-process", "xdist"])
def test_a_session_below_a_floor_fails_though_every_test_passed(tmp_path: Path, options: list[str]) -> None:
    code, said = session(tmp_path, {"unit": 5, "kafka": 1}, *options, tests=ONLY_GOOD)
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "below the floor: unit: 4 ran, at least 5 must" in said
    assert "below the floor: kafka: 0 ran, at least 1 must" in said
    assert "4 passed" in said.splitlines()[-1]


def test_a_session_at_its_floors_passes(tmp_path: Path) -> None:
    code, said = session(tmp_path, {"unit": 4}, tests=ONLY_GOOD)
    assert code == pytest.ExitCode.OK
    assert "below the floor" not in said


def test_a_test_without_a_kind_is_not_accepted(tmp_path: Path) -> None:
    code, said = session(tmp_path, {}, tests="def test_stray(): pass\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "test_stray has no kind" in said


@pytest.mark.parametrize("run", ["test", "test-long"])
def test_the_floors_of_this_project_name_kinds_that_exist(run: str) -> None:
    floors = kind_counts.read_floors(run)
    assert {"compat", "kafka", "spark"} <= set(floors)
    assert all(floor > 0 for floor in floors.values())


def test_a_floor_for_an_unknown_kind_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "floors.toml"
    path.write_text("[test]\nunti = 3\n")
    with pytest.raises(pytest.UsageError, match="unti"):
        kind_counts.read_floors("test", path)


def test_floors_of_an_unknown_run_are_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="no floors for tset, only for test, test-long"):
        kind_counts.read_floors("tset")
