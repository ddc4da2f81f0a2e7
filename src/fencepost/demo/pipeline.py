"""The second act: a Spark job enriches the orders; its driver is killed while it publishes, and a standby resumes.

The standby has only a Spark session; it resumes from the checkpoint. Both are this module as a process:
`python -m fencepost.demo.pipeline SERVERS SOURCE TARGET CHECKPOINT RECORDS_PER_BATCH`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.client.admin_client import Admin
from fencepost.demo.children import Child, end_with_parent, tell
from fencepost.demo.narrator import Narrator
from fencepost.demo.orders import PARTITIONS
from fencepost.demo.picture import Interval, Timeline
from fencepost.errors import FencepostError
from fencepost.spark import workers

if TYPE_CHECKING:
    from fencepost.spark import BatchReport

TARGET: Final = "orders-enriched"
MICRO_BATCHES: Final = 8
_SECONDS_BETWEEN_LOOKS: Final = 0.005


def what_is_missing() -> str | None:
    """Return how to install what this part needs; None if nothing is missing."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "pip install 'fencepost[spark]'"
    found = workers.find_java()
    if found is None:
        return workers.JAVA_ADVICE
    return None if found.new_enough else f"Java {found.version} is too old: {workers.JAVA_ADVICE}"


class Journal:
    """The job's output, read line by line."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self.step = ""
        """The sink's current step."""
        self.batches: list[dict[str, Any]] = []

    def read_on(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            told = json.loads(line)
            if told["event"] == "batch":
                self.batches.append(told)
            self.step = told.get("step", "")


def driver(address: str, source: str, records: int, folder: Path) -> Child:
    """Start a driver that creates its session and then waits for `go`."""
    per_batch = max(PARTITIONS, -(-records // MICRO_BATCHES))
    arguments = (address, source, TARGET, folder / "checkpoint", per_batch)
    return Child("fencepost.demo.pipeline", *arguments, out=folder / "job.jsonl", errors=folder / "spark.log")


def run(
    first: Child, address: str, source: str, records: int, folder: Path, narrator: Narrator, timeline: Timeline
) -> float:
    """Start the first driver, kill it half-way and let the standby finish; return the seconds it took."""
    with Admin(address) as admin:
        admin.create_topic(TARGET, PARTITIONS)
    journal = Journal(folder / "job.jsonl")
    began = time.monotonic()
    first.go()
    with narrator.bar("enriching", records) as moved:

        def look() -> None:
            journal.read_on()
            moved(sum(batch["rows"] for batch in journal.batches))

        _until(first, look, lambda: bool(journal.batches))
        with driver(address, source, records, folder) as standby:
            _until(first, look, lambda: _is_publishing(journal, address))
            if first.ended:
                raise FencepostError(f"the Spark job ended before it was killed: {first.complaints()}")
            first.kill()
            standby.go()
            timeline.mark("driver killed")
            look()
            before, left = len(journal.batches), _open_records(address)
            which = f"micro-batch {before + 1} of {MICRO_BATCHES}"
            narrator.blow("kill -9", f"the driver, writing {which}: {left:,} records lie in the log uncommitted")
            _until(standby, look, lambda: False)
            if standby.wait():
                raise FencepostError(f"the Spark job failed: {standby.complaints()}")
        look()
    for batch in journal.batches:
        timeline.add(
            "orders enriched, committed", Interval(batch["time"] - batch["seconds"], batch["time"], batch["rows"])
        )
    return time.monotonic() - began


def _until(job: Child, look: Callable[[], None], reached: Callable[[], bool]) -> None:
    """Wait until `reached` is true or the job has ended."""
    look()
    while not reached() and not job.ended:
        time.sleep(_SECONDS_BETWEEN_LOOKS)  # polling: another process makes the progress
        look()


def _is_publishing(journal: Journal, address: str) -> bool:
    """Return whether half is done and the log holds uncommitted records: the worst moment for a crash. A small
    micro-batch may be too fast to catch; then accept any moment before the end."""
    done = len(journal.batches)
    if done < MICRO_BATCHES // 2 or journal.step != "publish":
        return False
    return done >= MICRO_BATCHES - 2 or _open_records(address) > 0


def _open_records(address: str) -> int:
    with Admin(address) as admin:
        end, stable = admin.latest(TARGET), admin.latest(TARGET, read_committed=True)
    return sum(end.values()) - sum(stable.values())


def job(servers: str, source: str, target: str, checkpoint: str, per_batch: str) -> None:
    """Read orders, and write them with tax and time added, exactly once: the Spark job, a process of its own.

    It is what a user would write, except for two things. `on_step` and `on_report` print a line of JSON each, so that
    the demo sees the progress. And it starts the query when its parent says so, because a session takes time to start.
    """
    go = end_with_parent()
    warnings.simplefilter("ignore")  # PySpark's own, about the versions of what it imports
    from pyspark.sql import SparkSession

    import fencepost.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("fencepost demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")  # starts sooner
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    fencepost.spark.register(spark)
    orders = (
        spark.readStream.format("fencepost")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
    )
    # current_timestamp() differs from run to run, so a repeated batch has other rows.
    enriched = orders.selectExpr(
        "key", "from_json(cast(value as string), 'order long, customer string, cents long') as o"
    ).selectExpr(
        "key",
        "to_json(struct(o.order, o.customer, o.cents, round(o.cents * 1.19) as gross, current_timestamp() as seen)) "
        "as value",
    )
    sink = fencepost.spark.Sink(
        servers,
        topic=target,
        name="demo",
        compression="lz4",
        on_step=lambda step: tell(event="step", step=step),
        on_report=_report,
    )
    go.wait()
    query = enriched.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _report(done: BatchReport) -> None:
    tell(
        event="batch",
        batch=done.batch,
        rows=0 if done.skipped else done.rows,
        seconds=sum(done.milliseconds.values()) / 1000,
    )


if __name__ == "__main__":
    job(*sys.argv[1:])
