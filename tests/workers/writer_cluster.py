"""`format("fencepost")` on a cluster of two executors, one of which is killed in the middle of a task.

    python -m tests.workers.writer_cluster SERVERS TOPIC FOLDER INLINE_BYTES

The rows differ whenever they are computed. Prints the attempts of all tasks as JSON. (Two attempts at the same time are
not possible here: Spark speculates only on another host, and both executors are on this one. `writer_speculation` has
two hosts.)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from tests.support.process import command_line
from tests.support.spark import session

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 2_000
_SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)  # another process does it; there is nothing else to await


def noted(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Note each attempt of a task. The first attempt of task 3 waits in the middle of its rows to be killed."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        (folder / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        for number, batch in enumerate(batches):
            if context.partitionId() == 3 and context.attemptNumber() == 0 and number == 1:
                (written := folder / "waits.part").write_text(str(os.getpid()))
                written.rename(folder / "waits")  # whoever sees the name can read the number
                wait_for(lambda: False)
            yield batch

    return rows


def kill_the_executor(waits: Path) -> None:
    """Kill the executor of the task that waits."""
    wait_for(waits.exists)
    for process in psutil.Process(int(waits.read_text())).parents():
        if any("CoarseGrainedExecutorBackend" in word for word in command_line(process)):
            os.kill(process.pid, signal.SIGKILL)
            return


def main(servers: str, topic: str, folder: Path, inline_bytes: str) -> None:
    spark = session("local-cluster[2,1,1024]", **_SETTINGS)
    threading.Thread(target=kill_the_executor, args=(folder / "waits",), daemon=True).start()
    df = (
        spark.range(0, ROWS, 1, 4).selectExpr("concat(id, ' ', uuid()) value").mapInArrow(noted(folder), "value string")
    )
    options = {"kafka.bootstrap.servers": servers, "topic": topic, "job": topic, "inlineBytes": inline_bytes}
    df.write.format("fencepost").mode("append").options(**options).save()
    spark.stop()
    print(json.dumps(sorted(note.name for note in folder.iterdir())))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
