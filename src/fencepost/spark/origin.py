"""Where a micro-batch comes from: its query, this run of it, and a hash of its source offsets.

Spark calls foreachBatch with a number alone, and a number does not say which rows the batch has. The offset log of the
query's checkpoint does: Spark writes a batch's entry before it runs the batch, and a restart repeats exactly that
entry. The running query is asked for it through Spark's shared state, because the session of foreachBatch is a clone
that does not know its queries.

Where the entry cannot be had, `offsets` is empty, a warning says so, and the sink goes by the batch's number.
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
"""Spark's local property: the query's id, stable per checkpoint, visible inside foreachBatch."""
RUN_ID: Final = "spark.jobGroup.id"
"""Spark runs the jobs of a query under the id of its run, unless the user has set a job group."""
_A_RUN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_METADATA: Final = 1
"""The line of an entry that has its time and watermark; before it is the version, behind it a line per source."""
_FILES: Final = re.compile(r'(\w+:)?\{"logOffset":\s*-?\d+\}')
"""An offset of Spark's file source: it counts batches, and does not say which files one has. Before it may be the
source's number, or the name that the user gave it (Spark 4.2)."""


def query_of(df: DataFrame) -> str:
    """The id of the query whose foreachBatch has called."""
    session = df.sparkSession
    query: str | None = session.sparkContext.getLocalProperty(QUERY_ID)
    if query:
        return query
    if _some_query_runs(session):
        raise ConfigError(
            "this thread does not belong to a streaming query: Spark says which query it is in a property of the "
            "thread that calls foreachBatch. To call the sink from a thread of your own, wrap it there, in "
            "foreachBatch: pool.submit(pyspark.inheritable_thread_target(sink), df, batch_id)"
        )
    raise ConfigError("not inside a streaming query: fencepost.spark.write writes a batch DataFrame")


def origin_of(df: DataFrame, query: str, batch: int, targets: str) -> Origin:
    """The run and the offsets of a micro-batch of `query`, as its running stream has them."""
    context = df.sparkSession.sparkContext
    group = context.getLocalProperty(RUN_ID) or ""
    run = group if _A_RUN.fullmatch(group) else ""
    try:
        running = _running(df.sparkSession, query)
        run = str(running.runId().toString())
        log = running.offsetLog()
        begin = _entry(context._jvm, log, batch - 1) if batch > 0 else ""
        return Origin(run, hash_of(begin, _entry(context._jvm, log, batch)), targets)
    except Exception as error:  # noqa: BLE001 - a Spark whose inside is another one: no reason to stop a query
        logger.warning(
            "the source offsets of batch %s cannot be read from this Spark (%s). The batch is known by its number "
            "alone: do not restore the checkpoint from a backup",
            batch,
            str(error).partition("\n")[0],
        )
        return Origin(run, "", targets)


def hash_of(begin: str, end: str) -> str:
    """`begin` and `end`: the entries of the batch before and of the batch. The hash is the same when Spark plans a
    batch anew and comes to the same offsets. With the file source it is not: its offsets do not say which files a batch
    has, so the time at which the batch was planned has to stand for them."""
    digest = hashlib.sha256()
    for entry in (begin, end):
        lines = entry.split("\n")
        sources = [_canonical(line) for line in lines[_METADATA + 1 :]]
        if any(_FILES.fullmatch(source) for source in sources):
            sources.append(str(json.loads(lines[_METADATA])["batchTimestampMs"]))
        digest.update("\n".join(sources).encode() + b"\0")
    return digest.hexdigest()


def _canonical(source: str) -> str:
    try:
        return json.dumps(json.loads(source), sort_keys=True)
    except ValueError:  # a source without an offset, or the second version's `name:offset`
        return source


def _running(session: SparkSession, query: str) -> Any:
    """Spark's StreamExecution."""
    uuid = session.sparkContext._jvm.java.util.UUID.fromString(query)
    found = session._jsparkSession.sharedState().activeStreamingQueries().get(uuid)
    if found is None:
        raise LookupError(f"query {query} is not among the running ones")
    return found


def _entry(jvm: Any, log: Any, batch: int) -> str:
    """An entry of the offset log, in the form that the checkpoint has."""
    written = jvm.java.io.ByteArrayOutputStream()
    log.serialize(log.get(batch).get(), written)
    return str(written.toString("UTF-8"))


def is_stopped(session: SparkSession, query: str) -> bool:
    """Whether somebody has stopped the query, so that Spark only waits for its last call of foreachBatch to return."""
    try:
        return not _running(session, query).isActive()
    except LookupError:
        return True
    except Exception:  # noqa: BLE001 - as in `origin_of`: then the batch is tried again, as often as it may be
        return False


def _some_query_runs(session: SparkSession) -> bool:
    try:
        return not session._jsparkSession.sharedState().activeStreamingQueries().isEmpty()
    except Exception:  # noqa: BLE001 - as in `origin_of`: only the choice of a hint depends on it
        return False
