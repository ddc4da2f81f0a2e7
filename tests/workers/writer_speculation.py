"""`format("fencepost")` on a cluster of two hosts that speculates: two attempts of a task at the same time.

    python -m tests.workers.writer_speculation SERVERS TOPIC FOLDER INLINE_BYTES

The rows differ whenever they are computed. The first attempt of task 3 waits in the middle of its rows for the second
one, and both go on. Prints the attempts of all tasks as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.spark import session
from tests.support.spark_cluster import standalone
from tests.workers.writer_cluster import ROWS, wait_for

if TYPE_CHECKING:
    import pyarrow as pa

_SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def noted(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Note each attempt of a task, and when two of them are in the middle of their rows."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        attempt = f"{context.partitionId()}-{context.attemptNumber()}"
        (folder / attempt).touch()
        for number, batch in enumerate(batches):
            if attempt == "3-0" and number == 1:
                wait_for((folder / "3-1").exists)
            if attempt == "3-1" and number == 1:
                # Both are in the middle of their rows now; the first one has written some to the stage.
                (folder / "both").touch()
            yield batch

    return rows


def main(servers: str, topic: str, folder: Path, inline_bytes: str) -> None:
    notes = folder / "notes"
    notes.mkdir()
    with standalone(folder, ("127.0.0.1", "127.0.0.2")) as master:
        spark = session(master, **_SETTINGS)
        df = spark.range(0, ROWS, 1, 4).selectExpr("concat(id, ' ', uuid()) value")
        df = df.mapInArrow(noted(notes), "value string")
        options = {"kafka.bootstrap.servers": servers, "topic": topic, "job": topic, "inlineBytes": inline_bytes}
        df.write.format("fencepost").mode("append").options(**options).save()
        spark.stop()
    print(json.dumps(sorted(note.name for note in notes.iterdir())))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
