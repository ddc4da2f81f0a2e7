"""The Java that Spark would run, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

OLDEST: Final = 17
ADVICE: Final = f"install Java {OLDEST} or newer (Debian: openjdk-17-jre-headless, macOS: brew install openjdk@17)"


class Java(NamedTuple):
    path: str
    version: str
    major: int

    @property
    def new_enough(self) -> bool:
        return self.major >= OLDEST


def find() -> Java | None:
    """Find Java as Spark does: in JAVA_HOME, else on the PATH. Return None if none runs."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None:
        return None
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(path, said)


def parse(path: str, said: str) -> Java | None:
    """Parse the output of `java -version`: 1.8.0_392 is Java 8, 17.0.15 is Java 17."""
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    return None if found is None else Java(path, found[1], int(found[2]))
