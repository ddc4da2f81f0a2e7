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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from fencepost.core.micro_batch.protocol import Origin
from fencepost.errors import ConfigError, FencepostError

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

_SCHEME: Final = (
    "without a scheme it is taken for a folder of this machine, while Spark takes it for one of fs.defaultFS. Give "
    "checkpointLocation its scheme (hdfs://…, s3://…),"
)
_REACHABLE: Final = "let the driver's Python reach it (pyarrow.fs),"
_unreadable: Final[set[str]] = set()
"""Checkpoints that this process has already warned of."""


_STATEFUL: Final = "StateStoreWriter"
"""The trait of Spark's operators that change a state store."""


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
        if checkpoint not in _unreadable:
            _unreadable.add(checkpoint)
            logger.warning(
                "the source offsets of batch %s cannot be read from the checkpoint %s (%s), so a checkpoint restored "
                "from a backup is not noticed: %s or use foreachBatch(fencepost.spark.Sink(…)), which asks Spark",
                batch,
                checkpoint,
                str(error).partition("\n")[0],
                _REACHABLE if "://" in checkpoint or checkpoint.startswith("file:") else _SCHEME,
            )
        return ""


def keeps_state(session: SparkSession, query: str) -> bool:
    """Return whether the query aggregates, joins streams, drops duplicates, or keeps state of its own. False, with a
    warning, if this Spark does not tell."""
    try:
        return _is_stateful(_running(session, query).lastExecution().executedPlan())
    except Exception as error:  # noqa: BLE001 - as in `origin_of`
        logger.warning(
            "cannot tell whether query %s keeps state (%s). If it does, and a driver is killed behind the sink's "
            "commit, nobody notices whether the batch is recomputed with other rows",
            query,
            str(error).partition("\n")[0],
        )
        return False


def _is_stateful(plan: Any) -> bool:
    """Return whether a node of the physical plan writes to Spark's state stores."""
    kind = plan.getClass()
    if kind.getSimpleName() == "AdaptiveSparkPlanExec":  # it hides its plan
        return _is_stateful(plan.inputPlan())
    if _STATEFUL in _interfaces(kind):
        return True
    children = plan.children()
    return any(_is_stateful(children.apply(at)) for at in range(children.size()))


def _interfaces(kind: Any) -> set[str]:
    """Return the simple names of all interfaces of a Java class. Spark moves its classes between packages."""
    found: set[str] = set()
    while kind is not None:
        for each in kind.getInterfaces():
            found |= {each.getSimpleName()} | _interfaces(each)
        kind = kind.getSuperclass()
    return found


def checkpoint_keeps_state(checkpoint: str) -> bool:
    """Return whether the files of a checkpoint show that the query keeps state; False if they cannot be read."""
    from pyarrow import fs

    try:
        place, folder = (
            fs.FileSystem.from_uri(checkpoint) if "://" in checkpoint else (fs.LocalFileSystem(), checkpoint)
        )
        found = place.get_file_info(f"{folder.removeprefix('file:')}/state")
        return bool(found.type == fs.FileType.Directory)
    except Exception as error:  # noqa: BLE001 - as in `checkpoint_hash`
        logger.info("whether the query keeps state cannot be read from %s: %s", checkpoint, error)
        return False


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


@contextmanager
def short_if_stopped(df: DataFrame, query: str) -> Iterator[None]:
    """Replace the error of a Spark job that `query.stop()` cancelled by a short one.

    Spark searches the text of an error in foreachBatch for an interruption, to end a stopped query without an error.
    Its search recurses once per character: over the text of a Spark job's error, with Java's stack in it, the query's
    thread dies of a StackOverflowError. `_STOPPED` is short, and has the words that Spark searches for.
    """
    try:
        yield
    except FencepostError:
        raise  # short, and worth to be seen
    except Exception as error:
        if not is_stopped(df.sparkSession, query):
            raise
        logger.info("query.stop() interrupted the micro-batch: %s", str(error).partition("\n")[0])
        raise FencepostError(_STOPPED) from None


_STOPPED: Final = (
    "query.stop() interrupted this micro-batch; the next start writes it (py4j.protocol.Py4JJavaError: An error "
    "occurred while calling Spark: java.lang.InterruptedException)"
)


def _some_query_runs(session: SparkSession) -> bool:
    try:
        return not session._jsparkSession.sharedState().activeStreamingQueries().isEmpty()
    except Exception:  # noqa: BLE001 - as in `origin_of`; only the error message depends on it
        return False
