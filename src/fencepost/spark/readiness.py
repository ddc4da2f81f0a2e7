"""Is everything in place for a sink? Asked of the cluster, and of every executor, before a job is trusted with data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencepost._version import __version__
from fencepost.client.admin import Admin
from fencepost.client.settings import ClientSettings
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Findings:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(f"{'ok ' if f.ok else 'NOT'}  {f.what}: {f.detail}" for f in self.findings)


def check(
    spark: SparkSession,
    servers: str | ClientSettings,
    *,
    topic: str | None = None,
    transaction_timeout: float = 300.0,
) -> Findings:
    """Version and kernel on every executor, reachability from driver and executors, the target, and what the server
    allows a transaction. Writes nothing but a transaction id that nobody uses."""
    settings = ClientSettings.of(servers)
    findings = [_finding("driver reaches the server", lambda: _ping(settings))]
    findings += _on_executors(spark, settings)
    findings.append(_finding("transactions", lambda: _transactions(settings, transaction_timeout)))
    if topic is not None:
        findings.append(_finding(f"target {topic}", lambda: _target(settings, topic)))
    return Findings(tuple(findings))


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
    def probe(_index: int) -> tuple[str, str, str, str]:
        import socket

        from fencepost._version import __version__ as version
        from fencepost.kernel import IMPLEMENTATION

        return socket.gethostname(), version, IMPLEMENTATION, str(_finding("", lambda: _ping(settings)))

    context = spark.sparkContext
    slots = max(2, context.defaultParallelism)
    try:
        found = sorted(set(context.parallelize(range(slots), slots).map(probe).collect()))
    except Exception as error:  # noqa: BLE001 - the package is missing there, or its Python is another one
        return [Finding("executors", False, f"fencepost cannot be loaded there: {str(error)[:300]}")]
    answers: dict[tuple[str, str, str], list[str]] = {}
    for host, version, kernel, reached in found:
        answers.setdefault((host, version, kernel), []).append(reached)
    return [
        Finding(
            f"executors on {host}",
            version == __version__ and all("ok=True" in answer for answer in reached),
            f"fencepost {version}, kernel {kernel}, "
            + ("reaches the server" if all("ok=True" in answer for answer in reached) else reached[0]),
        )
        for (host, version, kernel), reached in answers.items()
    ]


def _transactions(settings: ClientSettings, timeout: float) -> str:
    from fencepost.client.routing import Routes
    from fencepost.client.transactional import Transactional

    with Routes(settings) as routes:
        Transactional(routes, "fencepost.sink.check", patience=settings.request_timeout).init(int(timeout * 1000))
    return f"may take {timeout:g} s"


def _target(settings: ClientSettings, topic: str) -> str:
    from fencepost.spark.targets import describe

    with Admin(settings) as admin:
        target = describe(admin, topic)
    return f"{target.partitions} partitions, batches up to {target.max_bytes} bytes"
