"""Which Python Spark's workers run.

PySpark takes `python3` from the PATH unless told otherwise. A program started as `.venv/bin/python job.py` would have
workers outside of its own environment, which do not find this package.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

WHAT_TO_SET = (
    "set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that has fencepost on every machine: Spark's workers run "
    "python3 of their PATH otherwise"
)
_told: set[str] = set()
"""Applications that were told already."""


def use_this_python(spark: SparkSession) -> None:
    """Let the workers of a local master run this program's Python, unless the user has chosen one.

    With other masters the workers' machines are not known here: one line in the log says what to set.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return  # the workers are the server's
    if os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None):
        return
    context = spark.sparkContext
    if context.master.startswith("local") and sys.executable:
        context.pythonExec = sys.executable
    elif context.applicationId not in _told:
        _told.add(context.applicationId)
        logger.warning("%s", WHAT_TO_SET)
