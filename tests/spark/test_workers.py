"""Spark finds this package when the program is started by the Python of its own environment (PIPE-5)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost
from fencepost.spark import workers
from fencepost.spark.early_connect import NAME
from tests.support.spark import archived_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SESSION = 'spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()'
JOB = f"""
import sys
import fencepost.spark
from pyspark.sql import SparkSession
servers, topic = sys.argv[1:]
{SESSION}
reached = {{"kafka.bootstrap.servers": servers}}
events = spark.readStream.format("fencepost").options(subscribe=topic, startingOffsets="earliest", **reached).load()
sink = fencepost.spark.Sink(servers, topic=f"{{topic}}-out", name=topic)
query = events.writeStream.foreachBatch(sink).option("checkpointLocation", sys.argv[0] + topic)
query.trigger(availableNow=True).start().awaitTermination()
again = fencepost.spark.write(spark.range(3).selectExpr("'' value"), servers, topic=topic, job=topic)
print("rows", sink.report.rows, again.rows, "check", fencepost.spark.check(spark, servers, topic=topic).ok)
"""
SESSION_FIRST = f"""
import sys
from pyspark.sql import SparkSession
servers, topic = sys.argv[1:]
{SESSION}
import fencepost.spark
reading = spark.read.format("fencepost").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
print("rows", reading.load().count())
"""

SLOW = """
import os, sys, time

class SlowToImport:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark":
            time.sleep(12)

if "python_streaming_source_runner" in sys.orig_argv[-1]:
    sys.meta_path.insert(0, SlowToImport())
"""
"""Spark waits for ten seconds, which are fixed in its code, for the process of a stream's source."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "said"), [(JOB, "rows 10 3 check True"), (SESSION_FIRST, "rows 10")], ids=["job", "session first"]
)
def test_a_job_started_by_its_own_python_needs_no_setting(
    fencepost_server: fencepost.Server, name: str, tmp_path: Path, program: str, said: str
) -> None:
    """`python3` of the PATH is another one, which has neither this package nor PySpark; and no format is registered.

    PySpark is slow to import, as on a loaded machine: a stream's Python connects to Spark before it imports it."""
    with fencepost.Admin(fencepost_server.address) as admin:
        admin.create_topic(name, 2)
        admin.create_topic(f"{name}-out", 2)
    with fencepost.Producer(fencepost_server.address) as producer:
        for number in range(10):
            producer.send(name, str(number).encode())
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    job = tmp_path / "job.py"
    job.write_text(program)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
    environment["PATH"] = f"{bare / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment["PYTHONPATH"] = str(tmp_path)
    environment["JAVA_TOOL_OPTIONS"] = " ".join(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archived_classes()])
    done = subprocess.run(
        [sys.executable, job, fencepost_server.address, name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [said], done.stderr[-3000:]


def test_fencepost_python_is_otherwise_this_python() -> None:
    command = workers.command()
    assert Path(command).name == NAME
    program = "import sys; print(sys.executable, *sys.argv)"
    said = subprocess.run([command, "-c", program, "-m", "x"], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [sys.executable, "-c", "-m", "x"]


@pytest.mark.long
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
    assert b"fencepost.spark.daemon" in Path(f"/proc/{parent}/cmdline").read_bytes()
    assert preloaded == "True"
