"""Spark sessions for tests: small, silent, on loopback."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def session(master: str = "local[2,4]", **conf: str) -> SparkSession:
    """`local[2,4]`: two cores, and a task may fail three times before its stage does, as on a cluster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about the versions of what it imports
        from pyspark.sql import SparkSession

        import fencepost.spark

        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master(master).appName("fencepost tests")
        for key, value in {**CONF, **conf}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        if hasattr(spark, "dataSource"):  # PySpark 3.5 has no sources in Python
            fencepost.spark.register(spark)
    return spark
