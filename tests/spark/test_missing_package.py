"""What a user reads where Spark's Python lacks fencepost: what is missing, where, and how to install it (PIPE-5).

That Python has everything else that PySpark needs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from fencepost.spark.options import parse_source
from fencepost.spark.source import BatchReader, StreamReader
from fencepost.spark.writer import batch_writer, stream_writer
from tests.support.spark import CONF, DAEMON, ROOT
from tests.support.spark_drivers import PATIENCE, connecting

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

VALUE = StructType([StructField("value", StringType())])


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the packages of this one, without fencepost: it does not look into their `.pth` files."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
    return home / "bin" / "python"


def without_sources(env: dict[str, str]) -> dict[str, str]:
    return {**env, "PYTHONPATH": str(ROOT)}


def options(servers: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, **more}


@pytest.mark.every_run("writeStream")
@pytest.mark.parametrize("kind", ["read", "readStream", "write", "writeStream"])
def test_a_worker_without_the_package_says_so(kind: str, bare: Path, ours: str, name: str, tmp_path: Path) -> None:
    """PySpark sends readers and writers to its workers with this cloudpickle."""
    subscribed = options(ours, subscribe=name)
    made: dict[str, Any] = {
        "read": lambda: BatchReader(parse_source(subscribed, streaming=False)),
        "readStream": lambda: StreamReader(parse_source(subscribed, streaming=True)),
        "write": lambda: batch_writer(options(ours, topic=name, job=name, create="1"), VALUE, overwrite=False),
        "writeStream": lambda: stream_writer(options(ours, topic=name, name=name, create="1"), VALUE),
    }
    shipped = made[kind]()
    content = tmp_path / "content"
    content.write_bytes(cloudpickle.dumps(lambda: shipped))
    arrived = cloudpickle.loads(content.read_bytes())()
    assert type(arrived) is type(shipped)
    assert arrived.__dict__.keys() == shipped.__dict__.keys()
    program = f"from pyspark import cloudpickle; cloudpickle.loads(open({str(content)!r}, 'rb').read())"
    done = subprocess.run(
        [bare, "-c", program], env=without_sources(dict(os.environ)), capture_output=True, text=True, check=False
    )
    said = done.stderr.splitlines()[-1]
    assert "fencepost cannot be imported in Spark's Python workers: No module named 'fencepost'" in said
    assert str(bare) in said
    assert "pip install 'fencepost[arrow]'" in said


PROGRAM = """
import sys
sys.path.insert(0, {sources!r})
from pyspark.sql import SparkSession
import fencepost.spark

spark = SparkSession.builder.remote("local[1]").getOrCreate()
for tried in (lambda: spark.read.format("fencepost").load().schema, lambda: fencepost.spark.register(spark)):
    try:
        tried()
    except Exception as error:
        print("SAID", " ".join(str(error).split()))
spark.stop()
"""


@pytest.mark.long
def test_a_connect_server_without_the_package_is_found_by_register(bare: Path) -> None:
    """The first of the two errors is Spark's own; docs/troubleshooting.md explains it."""
    import fencepost

    program = PROGRAM.format(sources=str(Path(fencepost.__file__).parents[1]))
    env = without_sources({**connecting(), "PYSPARK_PYTHON": str(bare)})
    env["JAVA_TOOL_OPTIONS"] = env["JAVA_TOOL_OPTIONS"].replace(CONF[DAEMON], "pyspark.daemon")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID")]
    assert len(said) == 2, (done.stdout, done.stderr[-3000:])
    unknown, registered = said
    assert "[DATA_SOURCE_NOT_FOUND]" in unknown
    assert "the Spark Connect server cannot import fencepost" in registered
    assert "pip install 'fencepost[arrow]'" in registered
