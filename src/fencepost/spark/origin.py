"""The origin of a micro-batch: its query, the run of the query, and a hash of its source offsets.

Spark passes only a batch number to foreachBatch, and the number does not identify the rows. The offset log of the
query's checkpoint does: Spark writes a batch's entry before it runs the batch, and a restart repeats exactly that
entry. We read the entry from the running query through Spark's shared state, because the session of foreachBatch is a
clone that does not know its queries.

If the entry is not readable, `offsets` is empty, a warning is logged, and the sink goes by the batch number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from fencepost.core.micro_batch import Origin
from fencepost.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the query's id: stable per checkpoint, visible inside foreachBatch."""
RUN_ID: Final = "spark.jobGroup.id"
"""Spark's job group: the id of the query's run, unless the user has set a group."""
_A_RUN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_METADATA: Final = 1
"""The line of an entry with its time and watermark. The line before has the version; one line per source follows."""
_FILES: Final = re.compile(r'(\w+:)?\{"logOffset":\s*-?\d+\}')
"""An offset of Spark's file source: it counts batches, and does not name their files. The source's number, or the name
that the user gave it (Spark 4.2), may come first."""


def query_of(df: DataFrame) -> str:
    """Return the id of the query that calls foreachBatch."""
    session = df.sparkSession
    query: str | None = session.sparkContext.getLocalProperty(QUERY_ID)
    if query:
        return query
    if _some_query_runs(session):
        raise ConfigError(
            "this thread does not belong to a streaming query: Spark keeps the query's id in a property of the thread "
            "that calls foreachBatch. To call the sink from another thread, wrap it inside foreachBatch: "
            "pool.submit(pyspark.inheritable_thread_target(sink), df, batch_id)"
        )
    raise ConfigError("not inside a streaming query: use fencepost.spark.write for a batch DataFrame")


def origin_of(df: DataFrame, query: str, batch: int, targets: str) -> Origin:
    """Return the run and the source offsets of a micro-batch, read from the running query."""
    context = df.sparkSession.sparkContext
    group = context.getLocalProperty(RUN_ID) or ""
    run = group if _A_RUN.fullmatch(group) else ""
    try:
        running = _running(df.sparkSession, query)
        run = str(running.runId().toString())
        log = running.offsetLog()
        begin = _entry(context._jvm, log, batch - 1) if batch > 0 else ""
        return Origin(run, hash_of(begin, _entry(context._jvm, log, batch)), targets)
    except Exception as error:  # noqa: BLE001 - a Spark with other internals must not stop the query
        logger.warning(
            "cannot read the source offsets of batch %s from this Spark (%s). Only its number identifies the batch: do "
            "not restore the checkpoint from a backup",
            batch,
            str(error).partition("\n")[0],
        )
        return Origin(run, "", targets)


def hash_of(begin: str, end: str) -> str:
    """Hash the entries of the previous batch (`begin`) and of the batch (`end`). The hash stays the same when Spark
    plans the batch again with the same offsets. Not with the file source: its offsets do not name the files of a batch,
    so the hash uses the batch's planning time instead."""
    digest = hashlib.sha256()
    for entry in (begin, end):
        lines = entry.split("\n")
        sources = [_canonical(line) for line in lines[_METADATA + 1 :]]
        if any(_FILES.fullmatch(source) for source in sources):
            sources.append(str(json.loads(lines[_METADATA])["batchTimestampMs"]))
        digest.update("\n".join(sources).encode() + b"\0")
    return digest.hexdigest()


def checkpoint_hash(checkpoint: str, batch: int) -> str:
    """Return the hash of a batch's source offsets, read from the files of the checkpoint; empty if they cannot be read.

    A writer by the data source API cannot ask the running query. Spark has written the entry of a batch before it runs
    the batch, so the file is there if this process can reach its file system.
    """
    from pyarrow import fs

    try:
        place, folder = (
            fs.FileSystem.from_uri(checkpoint) if "://" in checkpoint else (fs.LocalFileSystem(), checkpoint)
        )
        folder = folder.removeprefix("file:")

        def entry(number: int) -> str:
            with place.open_input_stream(f"{folder}/offsets/{number}") as file:
                return str(file.read().decode())

        return hash_of(entry(batch - 1) if batch > 0 else "", entry(batch))
    except Exception as error:  # noqa: BLE001 - a file system that pyarrow does not know: no reason to stop a query
        logger.info("the source offsets of batch %s cannot be read from %s: %s", batch, checkpoint, error)
        return ""


def _canonical(source: str) -> str:
    try:
        return json.dumps(json.loads(source), sort_keys=True)
    except ValueError:  # a source without an offset, or the second version's `name:offset`
        return source


def _running(session: SparkSession, query: str) -> Any:
    """Return Spark's StreamExecution of the query."""
    uuid = session.sparkContext._jvm.java.util.UUID.fromString(query)
    found = session._jsparkSession.sharedState().activeStreamingQueries().get(uuid)
    if found is None:
        raise LookupError(f"query {query} is not running")
    return found


def _entry(jvm: Any, log: Any, batch: int) -> str:
    """Return an entry of the offset log, as serialized in the checkpoint."""
    written = jvm.java.io.ByteArrayOutputStream()
    log.serialize(log.get(batch).get(), written)
    return str(written.toString("UTF-8"))


def is_stopped(session: SparkSession, query: str) -> bool:
    """Return whether the query was stopped, so that Spark only waits for the last foreachBatch call to return."""
    try:
        return not _running(session, query).isActive()
    except LookupError:
        return True
    except Exception:  # noqa: BLE001 - as in `origin_of`; the batch is then retried up to its limit
        return False


def _some_query_runs(session: SparkSession) -> bool:
    try:
        return not session._jsparkSession.sharedState().activeStreamingQueries().isEmpty()
    except Exception:  # noqa: BLE001 - as in `origin_of`; only the error message depends on it
        return False
