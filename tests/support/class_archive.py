"""Archives of loaded Java classes (class data sharing). A JVM that maps one needs about half the CPU time to start.

One run of a program makes the archive, and all later runs use it. A JVM that finds it unsuitable (another Java, another
class path, changed jars) ignores it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_SILENT: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""The JVM warns on stdout about classes that it cannot archive, and tests read the stdout of programs."""


def path(folder: Path, program: str, classes: Path, java: str) -> Path:
    """Return where the archive of a program is, for this Java and the folder of its classes."""
    binary = Path(shutil.which(java) or java).resolve()
    built = int(binary.stat().st_mtime) if binary.exists() else 0
    key = hashlib.sha256(f"{binary} {built} {classes}".encode()).hexdigest()[:12]
    return folder / f"{program}-{key}.jsa"


def options(archive: Path) -> list[str]:
    """Return the JVM options that use the archive; none if it was not made."""
    usable = archive.exists() and archive.stat().st_size > 0
    return [f"-XX:SharedArchiveFile={archive}", *_SILENT] if usable else []


def make(archive: Path, run: Callable[[Sequence[str]], None]) -> None:
    """Make the archive unless it is there. `run` gets the JVM options to start with, and returns when the JVM ended."""
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with locked(archive.with_suffix(".lock")):
        if archive.exists():  # another process was faster
            return
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            fresh = Path(scratch, archive.name)
            run([f"-XX:ArchiveClassesAtExit={fresh}", *_SILENT])
            fresh.touch()  # an empty file tells that this JVM makes none, so that nobody tries again
            fresh.rename(archive)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock among processes, which ends with the process."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def java_of_spark() -> str:
    """Return the Java that PySpark starts."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"
