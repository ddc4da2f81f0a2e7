"""Frozen record batches in files, where all tasks run on the driver's machine (a local master).

A task that freezes appends its batches to a file of its own, and Spark carries only the manifest with their places. A
task that publishes reads them from there. Through Spark's storage each batch would pass the JVM twice, from Python and
to Python, and once more through a shuffle if several tasks have rows for its target partition.

The files are in the temporary folder that Spark made for the application, and deletes at its end. They are removed when
the micro-batch is over. A file that is gone fails the task, and the micro-batch is frozen again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from io import FileIO
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.client.cluster.closing import Closing
from fencepost.kernel import Buffer
from fencepost.spark.workers import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OPEN_FILES: Final = 64


class SpoolPlace(NamedTuple):
    """The place of a batch."""

    file: str
    at: int


class Spool:
    """The files of one micro-batch. The driver makes it, and removes it."""

    def __init__(self, spark: SparkSession) -> None:
        temporary: str = spark.sparkContext._temp_dir
        os.makedirs(temporary, mode=0o700, exist_ok=True)  # systems remove what nobody used for days
        self.folder = tempfile.mkdtemp(prefix="fencepost-", dir=temporary)

    @staticmethod
    def is_possible(spark: SparkSession) -> bool:
        """Return whether all tasks run on this machine, in the JVM of the session. Not if Spark must encrypt what it
        writes to disks (spark.io.encryption.enabled): these files are plain."""
        context = spark.sparkContext
        return is_local(context) and not context._encryption_enabled

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class SpoolWriter(Closing):
    """The file of one attempt of a task; made when the first batch comes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: FileIO | None = None
        self._name = ""
        self._at = 0

    def put(self, batch: Buffer) -> SpoolPlace:
        """Append the batch."""
        if self._file is None:
            descriptor, self._name = tempfile.mkstemp(dir=self._folder)
            self._file = FileIO(descriptor, "wb")
        place = SpoolPlace(self._name, self._at)
        left = memoryview(batch)
        while left:
            written = self._file.write(left)
            left = left[written:]
        self._at += len(batch)
        return place

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class SpoolReader(Closing):
    """Reads batches, those of a target partition from one file after the other. There is a file for each task that
    froze, and a process may open 1024 files by default, so only the last ones stay open."""

    def __init__(self) -> None:
        self._open: dict[str, FileIO] = {}
        """The one that was opened first comes first."""

    def read(self, place: SpoolPlace, size: int) -> bytearray:
        """Return the batch at a place."""
        file = self._open.get(place.file)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.pop(next(iter(self._open))).close()
            file = self._open[place.file] = FileIO(place.file, "rb")
        file.seek(place.at)
        content = bytearray(size)
        left = memoryview(content)
        while left:
            count = file.readinto(left)
            if not count:
                raise OSError(f"{place.file} ends {len(left)} bytes too early: was it changed?")
            left = left[count:]
        left.release()
        return content

    def close(self) -> None:
        for file in self._open.values():
            file.close()
