"""The source and the writer over Spark Connect: a client, a server in another process, and nothing registered."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fencepost import Admin
from tests.support.committed import committed_values
from tests.support.spark import ROOT
from tests.support.spark_drivers import PATIENCE, connecting

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import fencepost.spark

servers, name, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
reached = {"kafka.bootstrap.servers": servers}
rows = spark.range(200).selectExpr("cast(id as string) value")
for _ in range(2):
    rows.write.format("fencepost").mode("append").options(topic=f"{name}-in", job=name, **reached).save()
fencepost.spark.register(spark)  # not needed, and does no harm
rows = spark.range(200, 300).selectExpr("cast(id as string) value")
for _ in range(2):
    report = fencepost.spark.write(rows, servers, topic=f"{name}-in", job=f"{name}-more", compression="lz4")
    print("REPORT", report.rows, report.skipped)
try:
    fencepost.spark.write(rows, servers, topic=f"{name}-in", job=f"{name}-wrong", compresion="lz4")
except Exception as error:
    print("REFUSED", " ".join(str(error).split()))
print("READ", spark.read.format("fencepost").options(subscribe=f"{name}-in", **reached).load().count())
for turn in range(2):
    stream = spark.readStream.format("fencepost").options(subscribe=f"{name}-in", startingOffsets="earliest", **reached)
    stream = stream.option("maxOffsetsPerTrigger", 100).load().select("key", "value").writeStream.format("fencepost")
    stream = stream.options(topic=f"{name}-out", name=name, checkpointLocation=checkpoint, **reached)
    stream.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.mark.long
def test_a_job_and_a_stream_over_connect_are_written_once(servers: str, name: str, tmp_path: Path) -> None:
    """PIPE-2: the server side imports `pyspark_fencepost` by itself."""
    with Admin(servers) as admin:
        for topic in ("in", "out"):
            admin.create_topic(f"{name}-{topic}", 3)
    command = [sys.executable, "-c", PROGRAM, servers, name, str(tmp_path / "checkpoint")]
    done = subprocess.run(
        command, cwd=ROOT, env=connecting(), capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = [line for line in done.stdout.splitlines() if line.split()[:1] in (["REPORT"], ["READ"])]
    assert said == ["REPORT 100 False", "REPORT 0 True", "READ 300"]
    (refused,) = (line for line in done.stdout.splitlines() if line.startswith("REFUSED"))
    assert "unknown option 'compresion'" in refused
    for topic in ("in", "out"):
        assert Counter(map(int, committed_values(servers, f"{name}-{topic}"))) == Counter(range(300))
