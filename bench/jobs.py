"""One thing for one client to do, in a process of its own, so that no run leaves anything behind for the next.

A job goes to the process as JSON, its outcome comes back as the last line of its output.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

PARTITIONS: Final = 4
LINGER_MS: Final = 20
BATCH_BYTES: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 300
_ROOT: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Produce:
    """Write `records` records of `size` bytes, acknowledged by all replicas, as fast as the client can.

    The first one is acknowledged before the clock starts: connecting, asking for metadata and a pid, and whatever a
    client loads at first use are no part of its rate. So `Outcome.records` is one fewer.
    """

    address: str
    topic: str
    records: int
    size: int
    codec: str = "none"
    idempotent: bool = True
    keyed: bool = False
    keys: int = 10_000
    """How many different ones, if keyed."""
    authority: str | None = None
    """Speak TLS, and trust the certificates in this file; only `confluent` and `java` can."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read the topic from its beginning, all partitions, until `records` records are there.

    The clock starts when the first ones are there, and those do not count, for the same reason.
    """

    address: str
    topic: str
    records: int
    size: int
    authority: str | None = None
    """As in `Produce`."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Write `records` records one at a time, each acknowledged before the next is sent."""

    address: str
    topic: str
    records: int
    size: int
    warm_up: int = 200


@dataclass(frozen=True, slots=True)
class Flood:
    """Write to `flooded` in a tight loop on one thread (or task), and on another one record at a time to `topic`."""

    address: str
    topic: str
    flooded: str
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class Idle:
    """Write one record to each of the topic's partitions, and then sit there."""

    address: str
    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Swarm:
    """Write `batches` small batches by so many idempotent producers in turn, each with a connection of its own."""

    address: str
    topic: str
    producers: int
    batches: int
    server_pid: int
    """Whose memory and CPU time are read while all of them are connected."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Write `batches` batches on one connection, and `records` acknowledged records one by one, beside so many
    connections that do nothing."""

    address: str
    topic: str
    connections: int
    batches: int
    records: int
    server_pid: int
    """As in `Swarm`."""


@dataclass(frozen=True, slots=True)
class Members:
    """Have a group of so many members rebalance `rounds` times, and then send `heartbeats` heartbeats in turn."""

    address: str
    topic: str
    group: str
    members: int
    rounds: int
    heartbeats: int
    server_pid: int
    """As in `Swarm`."""


Job: TypeAlias = Produce | Fetch | Latency | Flood | Idle | Swarm | Crowd | Members
KINDS: Final[dict[str, type[Job]]] = {
    "produce": Produce,
    "fetch": Fetch,
    "latency": Latency,
    "flood": Flood,
    "idle": Idle,
    "swarm": Swarm,
    "crowd": Crowd,
    "members": Members,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    records: int
    seconds: float
    client_cpu: float
    """CPU seconds of the client while it was measured; for Java of the whole JVM."""
    latencies_ms: list[float] = dataclasses.field(default_factory=list)
    resident_mib: float = 0.0
    """By how much the process grew."""
    server_mib: float = 0.0
    """Resident memory of the server while all connections were open, where the job says whose …"""
    server_cpu: float = 0.0
    """… and its CPU seconds while the clock ran."""

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds


class JobFailed(Exception):
    """The client's process ended with an error; the message has the end of what it printed."""


def run(client: str, job: Job, *, source: Path | None = None) -> Outcome:
    """Do the job with `bench/clients/{client}.py`, in a new process. `source`: a folder that holds another
    fencepost."""
    [kind] = [name for name, of in KINDS.items() if isinstance(job, of)]
    command = [sys.executable, "-m", "bench.clients", client, kind, json.dumps(dataclasses.asdict(job))]
    path = [str(source or ""), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode != 0:
        raise JobFailed(f"{client} {job}: {(done.stderr + done.stdout)[-1500:]}")
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))
