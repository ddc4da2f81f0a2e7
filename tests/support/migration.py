"""`fencepost migrate` as tests run it, and all that a reader can know of a topic before and after."""

from __future__ import annotations

import subprocess
import sys

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.types import TopicPartition


def command(source: str, target: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fencepost", "migrate", target, "--servers", source, *arguments]


def migrate(source: str, target: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run it to its end, which must have this exit code."""
    done = subprocess.run(command(source, target, *arguments), capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == code, done.stderr
    return done


def log(servers: str | ClientSettings, topic: str) -> dict[int, object]:
    """All that a reader of committed records can know of a topic: by partition its start, end and records."""
    with fencepost.Admin(servers) as admin:
        first, end = admin.earliest(topic), admin.latest(topic)
    found: dict[int, object] = {}
    for index in end:
        with fencepost.Reader(servers, TopicPartition(topic, index), start="earliest", stop="latest") as reader:
            records = [(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in reader]
        found[index] = (first[index], end[index], records)
    return found


class Abort(Exception):
    """Ends a transaction that a test aborts."""


def abort(writer: fencepost.Producer, topic: str, records: int) -> None:
    """Write an aborted transaction."""
    try:
        with writer.transaction():
            for _ in range(records):
                writer.send(topic, b"aborted", partition=0)
            writer.flush()
            raise Abort
    except Abort:
        pass


def write_with_gaps(address: str, topic: str) -> None:
    """Plain records, committed and aborted transactions of one and of several records, and a marker at the end."""
    with fencepost.Producer(address) as plain, fencepost.Producer(address, name=f"{topic}-writer") as writer:
        for number in range(3):
            plain.send(topic, b"plain %d" % number, partition=0, headers=[("n", b"%d" % number), ("none", None)])
        plain.flush()
        for size in (1, 3):
            with writer.transaction():
                for number in range(size):
                    writer.send(topic, b"committed %d" % number, key=b"key", partition=0, timestamp=1_000 + number)
            plain.send(topic, None, key=b"tombstone", partition=0).result()
        for size in (1, 2):
            abort(writer, topic, size)
        plain.send(topic, b"after aborts", partition=0).result()
        with writer.transaction():
            writer.send(topic, b"last", partition=0)
