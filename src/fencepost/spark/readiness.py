"""Checks before a job runs: of the cluster, of the permissions, and of every executor.

A sink needs these permissions. Its own requests try them, without disturbing a running sink:

    WRITE                   on the transactional id fencepost.sink.NAME
    DESCRIBE, READ, WRITE   on the progress topic __fencepost_sink.NAME, and CREATE if it does not exist yet
    the same                on the stage topic __fencepost_stage.NAME, if format("fencepost") writes large micro-batches
    DESCRIBE, READ, WRITE   on each target and the dead-letter topic: READ is for DescribeProducers, which verifies

The requests carry a producer identity that cannot exist: the server checks the permissions first, then rejects them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost._version import __version__
from fencepost.client.admin.lasting import weak_topics
from fencepost.client.admin.results import NewTopic
from fencepost.client.admin_client import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import refuse_old_kafka
from fencepost.client.micro_batch.targets import describe, reached
from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX, check_name, refuse_compacted
from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.spark.workers import refuse_connect, use_this_python
from fencepost.types import Epoch, Milliseconds, Pid, TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    detail: str
    is_weak: bool = False
    """It works until a broker fails, or a micro-batch of `format("fencepost")` is large."""

    @property
    def state(self) -> str:
        return "low" if self.is_weak else "ok " if self.ok else "NOT"


@dataclass(frozen=True, slots=True)
class Findings:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{finding.state}  {finding.what}: {finding.detail}" for finding in self.findings)


def check(
    spark: SparkSession,
    servers: str | ClientSettings,
    *,
    topic: str | None = None,
    name: str = "check",
    transaction_timeout: float = 300.0,
    settings: Mapping[str, str] | None = None,
) -> Findings:
    """Check version and kernel on every executor, the connection from driver and executors, the transaction timeout,
    and the permissions on the target, on the progress topic and on the stage topic of the sink `name`.

    It makes the sink's own requests under the sink's names, without disturbing a running sink of this name.
    """
    refuse_connect(spark)
    use_this_python(spark)
    how = reached(servers, settings)
    findings = [_finding("driver reaches the server", lambda: _ping(how))]
    findings += _on_executors(spark, how)
    findings.append(_finding("transactions", lambda: _transactions(how, name, transaction_timeout)))
    findings.append(_finding("progress topic", lambda: _own_topic(how, name, PROGRESS_TOPIC_PREFIX + check_name(name))))
    findings.append(_stage(how, name))
    if topic is not None:
        findings.append(_finding(f"target {topic}", lambda: _target(how, name, topic)))
    findings += _weak_ones(how, PROGRESS_TOPIC_PREFIX + check_name(name), topic)
    return Findings(tuple(findings))


def _weak_ones(settings: ClientSettings, *topics: str | None) -> list[Finding]:
    """Return warnings about topics that would not survive the loss of a broker. Other checks report errors."""
    try:
        with Admin(settings) as admin:
            weak = list(weak_topics(admin, [topic for topic in topics if topic is not None]))
    except FencepostError:
        return []
    return [Finding(f"replication of {topic}", True, why, is_weak=True) for topic, why in weak]


def _finding(what: str, ask: Any) -> Finding:
    try:
        return Finding(what, True, ask())
    except FencepostError as error:
        return Finding(what, False, str(error))


def _ping(settings: ClientSettings) -> str:
    with Admin(settings) as admin:
        pong = admin.ping()
    return f"{pong.address}, {pong.milliseconds} ms"


def _on_executors(spark: SparkSession, settings: ClientSettings) -> list[Finding]:
    def probe(_index: int) -> tuple[str, str, str, Finding]:
        import socket

        from fencepost._version import __version__ as version
        from fencepost.kernel import IMPLEMENTATION

        return socket.gethostname(), version, IMPLEMENTATION, _finding("", lambda: _ping(settings))

    context = spark.sparkContext
    slots = max(2, context.defaultParallelism)
    try:
        found = context.parallelize(range(slots), slots).map(probe).collect()
    except Exception as error:  # noqa: BLE001 - the package is missing there, or Python is another version
        return [Finding("executors", False, f"cannot load fencepost there: {_cause(error)}")]
    answers: dict[tuple[str, str, str], list[Finding]] = {}
    for host, version, kernel, ping in found:
        answers.setdefault((host, version, kernel), []).append(ping)
    findings = []
    for (host, version, kernel), pings in answers.items():
        refused = next((ping.detail for ping in pings if not ping.ok), None)
        same = (
            f"fencepost {version}" if version == __version__ else f"fencepost {version}, the driver has {__version__}"
        )
        said = f"{same}, kernel {kernel}, {refused or 'reaches the server'}"
        findings.append(Finding(f"executors on {host}", version == __version__ and refused is None, said))
    return findings


def _cause(error: Exception) -> str:
    """Return the line of a failed job's report that says why: the last line of Python's traceback, not of Java's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    says_why = re.compile(r"[\w.]*(Error|Exception|MISMATCH)\b(?! from python worker)|.*No module named")
    return next((line for line in lines if says_why.match(line)), lines[0])[:300]


def _transactions(settings: ClientSettings, name: str, timeout: float) -> str:
    with Routes(settings) as routes:
        refuse_old_kafka(routes.any().versions())
        try_name(routes, check_name(name), int(timeout * 1000))
    return f"may take {timeout:g} s"


def _stage(settings: ClientSettings, name: str) -> Finding:
    """A sink of foreachBatch has no stage, so a missing permission is a warning."""
    what, topic = "stage topic", STAGE_TOPIC_PREFIX + name
    try:
        said = _own_topic(settings, name, topic)
        if said.endswith("exists"):
            with Admin(settings) as admin:
                refuse_compacted(describe(admin, topic))
    except FencepostError as error:
        if error.code not in NOT_ALLOWED:
            return Finding(what, False, str(error))
        only = 'only format("fencepost") uses it, for micro-batches beyond inlineBytes'
        return Finding(what, True, f"{topic} may not be used, {only}: {error}", is_weak=True)
    return Finding(what, True, said)


def _own_topic(settings: ClientSettings, name: str, topic: str) -> str:
    """Try a topic that the sink creates for itself, reads and writes."""
    with Admin(settings) as admin, Routes(settings) as routes:
        try:
            admin.create_topics([NewTopic(topic, 1)], validate_only=True)
            said = f"{topic} can be created"
        except ServerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            said = f"{topic} exists"
        try_read(routes, topic)
        try_write(routes, name, topic)
    return said


def _target(settings: ClientSettings, name: str, topic: str) -> str:
    with Admin(settings) as admin, Routes(settings) as routes:
        target = describe(admin, topic)
        try_read(routes, topic)
        try_write(routes, name, topic)
    return f"{target.partitions} partitions, batches up to {target.max_bytes} bytes"


_NOBODY: Final = Identity(Pid(2**62), Epoch(0))
NOT_ALLOWED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    }
)
_OF_NOBODY: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""A server's errors for that identity, or for a missing topic: it returns them after it has checked permissions."""


def try_name(routes: Routes, sink: str, timeout_ms: Milliseconds) -> None:
    """Raise unless the sink may use its transactional id, with this transaction timeout."""
    name = SINK_ID_PREFIX + sink
    steps = Transactional(routes, name, patience=routes.settings.request_timeout)
    _tried(lambda: steps.init(timeout_ms, _NOBODY), f"WRITE on the transactional id {name!r}")


def try_write(routes: Routes, sink: str, topic: str) -> None:
    """Raise unless the sink may write to the topic in a transaction."""
    steps = Transactional(routes, SINK_ID_PREFIX + sink, patience=0.0)
    _tried(lambda: steps.add_partitions(_NOBODY, [TopicPartition(topic, 0)]), f"WRITE on the topic {topic!r}")


def try_read(routes: Routes, topic: str) -> None:
    """Raise unless the sink may read the topic and describe its producers."""

    def ask() -> None:
        fields: Mapping[str, Any] = {"topics": [{"name": topic, "partition_indexes": [0]}]}
        for found in routes.ask(Key.DESCRIBE_PRODUCERS, fields).message.topics:
            for partition in found.partitions:
                code = ErrorCode.of(partition.error_code)
                if code in NOT_ALLOWED:
                    raise ServerError(code)

    _tried(ask, f"READ on the topic {topic!r}")


def _tried(ask: Any, needed: str) -> None:
    try:
        ask()
    except FencepostError as error:
        if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT or error.code not in NOT_ALLOWED | _OF_NOBODY:
            raise
        if error.code in NOT_ALLOWED:
            raise ServerError(
                error.code, f"the sink needs {needed}; ask an administrator of the ACLs to grant it"
            ) from error
