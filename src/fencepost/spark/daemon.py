"""Spark's daemon of Python workers, which imports what the workers need before it forks them.

    spark.python.daemon.module=fencepost.spark.daemon

Each worker that Spark's own daemon forks imports fencepost, pandas and pyarrow by itself, and after each task it
collects garbage among all that was imported: two seconds of CPU time in each of the four workers of a small job.
Spark runs `python -m fencepost.spark.daemon pyspark.worker`, on every executor: fencepost must be installed there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from typing import Final

from pyspark import daemon

NEEDED: Final = (
    "crc32c",
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "fencepost.spark.publish",
    "fencepost.spark.source",
    "fencepost.spark.writer",
)

if __name__ == "__main__":
    for module in NEEDED:
        with contextlib.suppress(ImportError):  # PySpark 3.5 has no sources and writers in Python
            importlib.import_module(module)
    gc.freeze()
    daemon.manager()
