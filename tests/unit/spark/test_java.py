"""Java is found as Spark would, and its version understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.spark import java

pytestmark = pytest.mark.unit


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
    found = java.parse("java", said)
    assert found is not None
    assert (found.major, found.new_enough) == (major, new_enough)


def test_a_program_that_is_no_java_is_none() -> None:
    assert java.parse("java", "command not found") is None


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "java"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho 'openjdk version \"99.1\"' >&2\n")
    script.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = java.find()
    assert found is not None
    assert (found.path, found.major) == (str(script), 99)


def test_no_java_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java.find() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert java.find() is None
