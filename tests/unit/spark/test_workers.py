"""Which Python Spark is told to run (PIPE-5)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fencepost.spark import workers

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The PATH has another Python, and the user has chosen none; what is set here is unset afterwards."""
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(variable, "")  # so that monkeypatch knows what was there
        monkeypatch.delenv(variable)
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)


def test_spark_looks_for_formats_in_this_python_where_python3_is_another_one() -> None:
    workers.let_spark_find_formats()
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == workers.command()


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_python_that_the_user_has_chosen_stays(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "chosen")
    workers.let_spark_find_formats()
    assert [os.environ.get(each) for each in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")].count("chosen") == 1
    assert len({"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & os.environ.keys()) == 1


def test_nothing_is_set_in_an_activated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    workers.let_spark_find_formats()
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


def test_a_program_that_spark_started_is_told_to_register(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """spark-submit: the JVM was there first, and the session is not there yet."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # no session can be there, nor be looked for
    workers.let_spark_find_formats()
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
    assert "call fencepost.spark.register(spark)" in caplog.text
