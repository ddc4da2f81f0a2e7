"""A Spark driver to be killed: sends a query's rows through the sink, and has an accident at a given step.

    python -m tests.workers.spark_driver JSON

The JSON: servers, source, target, name, checkpoint, per_batch; `query`, what is made of the source (see QUERIES);
`format`, whether `writeStream.format("fencepost")` writes the rows instead of the sink of foreachBatch, with
`inline_bytes`; `way`, how it is started: classic, connect (a client and a server of Spark Connect) or pipeline
(`spark-pipelines run`); `accident`:
(step, batch, what), where `what` is kill (SIGKILL to the whole process group: driver, JVM and workers), stop (SIGSTOP
to it), or a path: it is created, and the driver goes on when the same path with `.go` behind it exists.
Exits with 0 when everything is written, with 3 and the reason when it was replaced by another driver.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from examples.spark_windowed_counts import counted
from tests.support.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter


def stream(spark: SparkSession, arguments: dict[str, Any], topic: str) -> DataFrame:
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", arguments["servers"])
    reading = reading.option("subscribe", topic).option("startingOffsets", "earliest")
    return reading.option("maxOffsetsPerTrigger", arguments["per_batch"]).load()


def rows(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    """Topic to topic, row by row."""
    return stream(spark, arguments, arguments["source"]).select("key", "value")


def counts(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    """A join with a static table, and counts per window: what the example does."""
    return counted(spark, stream(spark, arguments, arguments["source"]))


def paid(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    """A join of two streams: orders, each with the payment of the same key that came within twenty seconds."""
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    orders = stream(spark, arguments, arguments["source"]).selectExpr("key", "value as order", "timestamp as ordered")
    payments = stream(spark, arguments, arguments["payments"])
    payments = payments.selectExpr("key as paid_key", "value as payment", "timestamp as paid")
    within = "key = paid_key and paid between ordered and ordered + interval 20 seconds"
    joined = orders.withWatermark("ordered", "30 seconds").join(
        payments.withWatermark("paid", "30 seconds"), F.expr(within)
    )
    return joined.selectExpr("key", "concat(cast(order as string), ' by ', cast(payment as string)) as value")


QUERIES: Final[dict[str, Callable[[SparkSession, dict[str, Any]], DataFrame]]] = {
    "rows": rows,
    "counts": counts,
    "paid": paid,
}


PIPELINES: Final = str(Path(sys.executable).with_name("spark-pipelines"))
FLOW: Final = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from tests.workers.spark_driver import QUERIES

arguments = {arguments!r}
dp.create_sink("target", format="fencepost", options={options!r})


@dp.append_flow(target="target", name="flow")
def flow():
    return QUERIES[arguments.get("query", "rows")](SparkSession.active(), arguments)
"""


def main(arguments: dict[str, Any]) -> None:
    import fencepost.spark

    step_at, batch_at, what = arguments.get("accident") or ("", -1, "")
    started = 0

    def on_step(step: str) -> None:
        nonlocal started
        started += step == "freeze"
        # Steps before the freeze belong to the batch that is about to begin.
        batch = started if step in ("peek", "fence", "look") else started - 1
        if step != step_at or batch < batch_at:
            return
        if what in ("kill", "stop"):
            os.killpg(0, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
        else:
            wait_at(Path(what))

    if arguments.get("format"):
        by_format(arguments)
        return
    spark = session("local[2]")
    sink = fencepost.spark.Sink(
        arguments["servers"],
        topic=arguments["target"],
        name=arguments["name"],
        on_step=on_step,
        driver_bytes=arguments.get("driver_bytes", 1 << 20),
    )
    df = QUERIES[arguments.get("query", "rows")](spark, arguments)
    run(df.writeStream.outputMode("append").foreachBatch(sink), arguments)


def by_format(arguments: dict[str, Any]) -> None:
    """Send the rows through `writeStream.format("fencepost")`; another process commits, and has the accident."""
    from tests.workers import writer_steps

    folder = str(Path(arguments["checkpoint"]).parent)
    os.environ[writer_steps.VARIABLE] = json.dumps(
        [*(arguments.get("accident") or ("", -1, "")), os.getpgid(0), folder]
    )
    way = arguments.get("way", "classic")
    if way == "pipeline":
        run_project(arguments)
    spark = over_connect() if way == "connect" else session("local[2]")
    df = QUERIES[arguments.get("query", "rows")](spark, arguments)
    run(df.writeStream.outputMode("append").format("fencepost").options(**writing(arguments)), arguments)


def writing(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the options of the writer."""
    return {
        "kafka.bootstrap.servers": arguments["servers"],
        "topic": arguments["target"],
        "name": arguments["name"],
        "inlineBytes": str(arguments.get("inline_bytes", 1 << 20)),
        "onStep": "tests.workers.writer_steps:on_step",
    }


def over_connect() -> SparkSession:
    """Return a session of Spark Connect, whose server is a process of its own in this process group."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    return spark


def run_project(arguments: dict[str, Any]) -> NoReturn:
    """Become `spark-pipelines run`, with a project of one flow; its checkpoint is in the project's storage."""
    project = Path(arguments["checkpoint"]).parent / "project"
    project.mkdir(exist_ok=True)
    (project / "flow.py").write_text(FLOW.format(arguments=arguments, options=writing(arguments)))
    spec = {
        "name": arguments["name"],
        "storage": f"file://{arguments['checkpoint']}",
        "libraries": [{"glob": {"include": "flow.py"}}],
        "configuration": {"spark.sql.shuffle.partitions": "2"},
    }
    (project / "spark-pipeline.yml").write_text(json.dumps(spec))
    os.chdir(project)
    os.execv(PIPELINES, [PIPELINES, "--conf", "spark.ui.enabled=false", "run"])


def run(query: DataStreamWriter, arguments: dict[str, Any]) -> None:
    running = query.option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True).start()
    try:
        running.awaitTermination()
    except Exception as error:
        print(error)
        sys.exit(3 if "this driver was replaced" in str(error) else 1)


def wait_at(path: Path) -> None:
    path.touch()
    go = Path(f"{path}.go")
    deadline = time.monotonic() + 120
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # another process makes it; there is nothing else to await


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
