"""A job on a real cluster of two whose executor is killed while it publishes rows that differ whenever computed.

    python -m tests.workers.spark_cluster SERVERS TOPIC JOB ROWS

Prints the report as JSON. The executor dies at the first `publish`, with the frozen batches that it stored.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict

import psutil

from tests.support.process import command_line
from tests.support.spark import session


def main(servers: str, topic: str, job: str, rows: int) -> None:
    import fencepost.spark

    killed: list[int] = []

    def kill_an_executor(step: str) -> None:
        if step == "publish" and not killed:
            executors = [
                process
                for process in psutil.Process().children(recursive=True)
                if any("CoarseGrainedExecutorBackend" in word for word in command_line(process))
            ]
            victim = max(executors, key=lambda process: process.pid)
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    settings = {
        "spark.executor.memory": "512m",
        # Both are there before the first task: whichever is killed has frozen batches to take along.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    spark = session("local-cluster[2,1,1024]", **settings)
    df = spark.range(0, rows, 1, 4).selectExpr("concat(id, ' ', uuid()) value")
    report = fencepost.spark.write(
        df, servers, topic=topic, job=job, driver_bytes=0, on_step=kill_an_executor, attempts=5
    )
    spark.stop()
    assert killed
    print(json.dumps({**asdict(report), "milliseconds": dict(report.milliseconds)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
