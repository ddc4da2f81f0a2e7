"""Spark's daemon of Python workers, which imports what they need before it forks them.

    python -m tests.workers.spark_daemon pyspark.worker

Each worker that `pyspark.daemon` forks imports fencepost, pandas and pyarrow by itself, and after each task it collects
garbage among all that was imported: two seconds of CPU time in each of the four workers of a small job.
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
