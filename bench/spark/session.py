"""The Spark session of the run, with Spark's own connector on its class path."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import psutil

from tests.workers.spark_connector import connector_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}
"""Nothing that makes one of the two faster: what a user would not set is not set here."""


def open_session(*, connector: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    import fencepost.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers' Python is the driver's
    builder = SparkSession.builder.master("local[2]").appName("fencepost bench")
    settings = {**_SETTINGS, "spark.jars": connector_jars()} if connector else _SETTINGS
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    fencepost.spark.register(spark)
    return spark


def jvm_of(spark: SparkSession) -> int:
    """The process id of the session's JVM; what PySpark starts is a script around it."""
    process = psutil.Process(spark.sparkContext._gateway.proc.pid)
    while process.name() != "java":
        (process,) = process.children()
    return int(process.pid)
