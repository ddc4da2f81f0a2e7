"""Which Python Spark is told to run (PIPE-5), and the Java that it would run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fencepost.spark import workers

pytestmark = pytest.mark.unit


@pytest.fixture
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


@pytest.mark.usefixtures("_no_choice")
def test_spark_looks_for_formats_in_this_python_where_python3_is_another_one() -> None:
    workers.let_spark_find_formats()
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == workers.command()


@pytest.mark.usefixtures("_no_choice")
@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_python_that_the_user_has_chosen_stays(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "chosen")
    workers.let_spark_find_formats()
    assert [os.environ.get(each) for each in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")].count("chosen") == 1
    assert len({"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & os.environ.keys()) == 1


@pytest.mark.usefixtures("_no_choice")
def test_nothing_is_set_in_an_activated_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    workers.let_spark_find_formats()
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


@pytest.mark.usefixtures("_no_choice")
def test_a_program_that_spark_started_is_told_to_register(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """spark-submit: the JVM was there first, and the session is not there yet."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # no session can be there, nor be looked for
    workers.let_spark_find_formats()
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
    assert "call fencepost.spark.register(spark)" in caplog.text


@pytest.mark.parametrize(
    ("said", "major", "new_enough"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17, True),
        ('java version "1.8.0_392"', 8, False),
        ('openjdk version "21" 2023-09-19', 21, True),
        ('openjdk version "24-ea" 2025-03-18', 24, True),
    ],
)
def test_the_version_is_read_from_what_java_says(said: str, major: int, new_enough: bool) -> None:
    found = workers.parse_java("java", said)
    assert found is not None
    assert (found.major, found.new_enough) == (major, new_enough)


def test_a_program_that_is_no_java_is_none() -> None:
    assert workers.parse_java("java", "command not found") is None


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "java"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho 'openjdk version \"99.1\"' >&2\n")
    script.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = workers.find_java()
    assert found is not None
    assert (found.path, found.major) == (str(script), 99)


def test_no_java_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert workers.find_java() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert workers.find_java() is None
