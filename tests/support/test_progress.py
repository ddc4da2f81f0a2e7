"""The lines of a long run, tried on small sessions of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import progress

pytestmark = pytest.mark.unit

ROOT: Final = Path(__file__).parents[2]

CONFTEST: Final = """
from tests.support import progress

progress.SECONDS_BETWEEN_LINES = 0.0

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(progress.Progress(config))
"""

TESTS: Final = """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError("no such thing")

@pytest.mark.parametrize("word", ["a b", "c"])
def test_fine(word):
    pass

def test_skipped():
    pytest.skip("not here")

@pytest.mark.parametrize("word", ["it's"])
def test_wrong(word):
    assert word == "right", "the word is wrong"

def test_broken(broken):
    pass
"""


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one-process", "xdist"])
def test_a_run_says_how_far_it_is_and_ends_with_the_commands_that_repeat_failures(
    tmp_path: Path, options: list[str]
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sample.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-rN", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert any(re.match(r"100 %  5 of 5 tests in 0:\d\d, 2 FAILED", line) for line in lines), done.stdout
    assert any(line.startswith("FAILED test_sample.py::test_wrong[it's]: AssertionError: the word") for line in lines)
    repeats = [line for line in lines if line.startswith(progress.COMMAND)]
    assert sorted(repeats) == [
        f"{progress.COMMAND} 'test_sample.py::test_wrong[it'\"'\"'s]'  # AssertionError: the word is wrong",
        f"{progress.COMMAND} test_sample.py::test_broken  # RuntimeError: no such thing",
    ]
    assert re.search(r"1 failed, 2 passed, 1 skipped, 1 error", lines[-1]), lines[-1]
    assert lines[-2] in repeats
