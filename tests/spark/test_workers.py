"""Spark's workers find this package when the program is started by the Python of its own environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

JOB = """
import sys
from pyspark.sql import SparkSession
import fencepost.spark

servers, topic = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
written = fencepost.spark.write(spark.range(10).selectExpr("cast(id as string) value"), servers, topic=topic, job=topic)
fencepost.spark.register(spark)
reading = spark.read.format("fencepost").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
found = fencepost.spark.check(spark, servers, topic=topic)
print("rows", written.rows, reading.load().count(), "check", found.ok)
"""


def test_a_job_started_by_its_own_python_needs_no_setting(
    fencepost_server: fencepost.Server, name: str, tmp_path: Path
) -> None:
    """`python3` of the PATH is another one, which has neither this package nor PySpark."""
    with fencepost.Admin(fencepost_server.address) as admin:
        admin.create_topic(name, 2)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
    environment["PATH"] = f"{bare / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", JOB, fencepost_server.address, name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["rows 10 10 check True"], done.stderr[-3000:]


@pytest.mark.filterwarnings("default")
def test_the_workers_of_tests_start_quickly(spark: SparkSession) -> None:
    """They import PySpark from where it is compiled, and fencepost is there before the fork.

    The test above runs Spark as it was installed."""

    def found(batches: Any) -> Any:
        import os
        import sys

        import pyarrow as pa
        import pyspark

        preloaded = "fencepost.spark.source" in sys.modules
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__], "parent": [f"{os.getppid()} {preloaded}"]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(found, "file string, parent string").collect()
    parent, preloaded = row.parent.split()
    assert ".zip" not in row.file
    assert b"tests.workers.spark_daemon" in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert preloaded == "True"
