"""A Spark driver to be killed: copies a topic row by row through the sink, and has an accident at a given step.

    python -m tests.support.spark_driver JSON

The JSON: servers, source, target, name, checkpoint, per_batch, and `accident`: (step, batch, what), where `what` is
kill (SIGKILL to the whole process group: driver, JVM and workers), stop (SIGSTOP to it), or a path: it is created, and
the driver goes on when the same path with `.go` behind it exists. Exits with 0 when everything is copied, with 3 and
the reason when it was replaced by another driver.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.spark import session


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

    spark = session("local[2]")
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", arguments["servers"])
    reading = reading.option("subscribe", arguments["source"]).option("startingOffsets", "earliest")
    reading = reading.option("maxOffsetsPerTrigger", arguments["per_batch"])
    sink = fencepost.spark.Sink(
        arguments["servers"],
        topic=arguments["target"],
        name=arguments["name"],
        on_step=on_step,
        driver_bytes=arguments.get("driver_bytes", 1 << 20),
    )
    query = reading.load().select("key", "value").writeStream.foreachBatch(sink)
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
