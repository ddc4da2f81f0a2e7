"""The Python that Spark's workers run.

By default PySpark runs `python3` from the PATH. The workers of `.venv/bin/python job.py` would then run outside the
virtual environment and not find this package.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from fencepost.spark.columns import is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

WHAT_TO_SET = (
    "set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that has fencepost on every machine: otherwise Spark's "
    "workers run python3 from their PATH"
)
_told: set[str] = set()
"""Applications that were already warned."""


def is_local(context: SparkContext) -> bool:
    """Return whether all workers run on the driver's machine, as its children."""
    master: str = context.master
    return master == "local" or master.startswith("local[")


def known_cores(context: SparkContext) -> int | None:
    """Return the number of cores that run tasks; None: unknown. On a cluster it may change. And where the user has set
    spark.default.parallelism, Spark returns that number instead."""
    if not is_local(context) or context.getConf().get("spark.default.parallelism") is not None:
        return None
    cores: int = context.defaultParallelism
    return cores


def use_this_python(spark: SparkSession) -> None:
    """Let the workers of a local master run this program's Python, unless the user has chosen one.

    With other masters the Python of the workers' machines is unknown: log once what to set.
    """
    if is_connect(spark):
        return  # the Connect server starts the workers
    if os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None):
        return
    context = spark.sparkContext
    if context.master.startswith("local") and sys.executable:
        context.pythonExec = sys.executable
    elif context.applicationId not in _told:
        _told.add(context.applicationId)
        logger.warning("%s", WHAT_TO_SET)
