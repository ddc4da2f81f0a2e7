"""Spark sessions for tests: small, silent, on loopback."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from tests.support import class_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[2]
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
DAEMON: Final = "spark.python.daemon.module"
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    DAEMON: "fencepost.spark.daemon",
    JAVA_OPTIONS: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def session(master: str = "local[2,4]", **conf: str) -> SparkSession:
    """`local[2,4]`: two cores, and a task may fail three times before its stage does, as on a cluster."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about the versions of what it imports
        from pyspark.sql import SparkSession

        import fencepost.spark

        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master(master).appName("fencepost tests")
        java_options = [CONF[JAVA_OPTIONS], conf.pop(JAVA_OPTIONS, ""), *archived_classes()]
        for key, value in {**CONF, **conf, JAVA_OPTIONS: " ".join(filter(None, java_options))}.items():
            builder = builder.config(key, value)
        with patch.dict(os.environ, PYTHONPATH=python_path()):  # the JVM hands it on to its workers
            spark = builder.getOrCreate()
        if hasattr(spark, "dataSource"):  # PySpark 3.5 has no sources in Python
            fencepost.spark.register(spark)
    return spark


def python_path() -> str:
    """Return the PYTHONPATH of workers that start quickly (`workers/compiled`) and find this tree."""
    ours = [str(ROOT / "tests" / "workers" / "compiled"), str(ROOT)]
    present = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*ours, *(path for path in present if path and path not in ours)])


def archive_classes() -> None:
    """Make the archive of Spark's classes, unless it is there."""
    class_archive.make(_archive(), _run_a_pipeline)


def archived_classes() -> list[str]:
    """Return the options of a JVM that takes Spark's classes from the archive, if there is one."""
    return class_archive.options(_archive())


def _archive() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    return class_archive.path(ROOT / ".work", "spark", Path(found.origin), class_archive.java_of_spark())


def _run_a_pipeline(options: Sequence[str]) -> None:
    if importlib.util.find_spec("pyspark.sql.datasource") is None:
        return  # PySpark 3.5 has no sources in Python: no archive there
    command = [sys.executable, "-m", "tests.workers.spark_small_job", *options]
    subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=True)
