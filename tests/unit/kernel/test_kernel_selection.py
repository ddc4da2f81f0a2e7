"""Which implementation runs, and that the slow one says so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

REPORT = "from fencepost import kernel; print(kernel.IMPLEMENTATION, kernel.BatchBuilder.__module__)"
WITHOUT_COMPILED = "import sys; sys.modules['fencepost.kernel._batch'] = None; "


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    without_choice = {name: value for name, value in os.environ.items() if name != "FENCEPOST_KERNEL"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=without_choice | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_the_compiled_kernel_runs_where_it_is_built() -> None:
    done = run(REPORT)
    assert done.stdout.split() == ["cython", "fencepost.kernel._batch"]
    assert not done.stderr


def test_without_it_the_twin_serves_and_says_so_once() -> None:
    done = run(f"{WITHOUT_COMPILED}{REPORT}; import fencepost.kernel.arrow")
    assert done.stdout.split() == ["python", "fencepost.kernel.batch_py"]
    assert done.stderr.count("RuntimeWarning") == 1
    assert "compiled kernel is missing" in done.stderr


def test_the_twin_can_be_asked_for_and_is_then_silent() -> None:
    done = run(REPORT, FENCEPOST_KERNEL="python")
    assert done.stdout.split() == ["python", "fencepost.kernel.batch_py"]
    assert not done.stderr


def test_the_kernel_does_not_import_pyarrow() -> None:
    done = run("import sys, fencepost.kernel, fencepost.kernel.arrow; print('pyarrow' in sys.modules)")
    assert done.stdout.split() == ["False"]
