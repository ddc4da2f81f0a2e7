"""Readers that share a topic's partitions; no two of them ever hold the same one (OWN-10).

    fencepost topic create work --partitions 3 --set fencepost.reader.group=exclusive-readers
    python examples/exclusive_readers.py 127.0.0.1:9092 work [--session 6]

Start several processes. The group divides the partitions among them, and each owns what it is assigned: it reads from
the group's committed position, and commits its progress. A process that dies or sends no heartbeats loses its
partitions to the others. If it was only paused, the server rejects its fetches and commits when it wakes up.

A reader that wakes up may still process records that it has in memory. If that matters, let the system that gets the
results check the token, which rises with every holder; this program prints it with each result.

On Apache Kafka there is no owner: a reader that was replaced may fetch until it hears of it; its commit is rejected.
"""

from __future__ import annotations

import argparse
import sys

from fencepost import Fenced, FencepostError, PartitionsLost, Reader, TopicPartition

GROUP = "exclusive-readers"
FENCED, FAILED = 3, 1


def say(*words: object) -> None:
    print(*words, flush=True)


def read(servers: str, topic: str, session: float | None) -> None:
    """Read and commit until another reader has taken over; then raise Fenced or PartitionsLost."""

    def assigned(partitions: frozenset[TopicPartition]) -> None:
        for partition in sorted(partitions):
            say("holds", partition, reader.tokens[partition])

    def revoked(partitions: frozenset[TopicPartition]) -> None:
        for partition in sorted(partitions):
            say("gives", partition)

    def lost(partitions: frozenset[TopicPartition]) -> None:
        raise PartitionsLost(f"{', '.join(map(str, sorted(partitions)))} went to another reader")

    with Reader(
        servers,
        topic,
        group=GROUP,
        exclusive=True,
        on_assigned=assigned,
        on_revoked=revoked,
        on_lost=lost,
        # With KIP-848 the server decides how long a session is; the classic protocol lets its members choose.
        group_protocol=None if session is None else "cooperative",
        session_timeout=session or 45.0,
    ) as reader:
        while (records := reader.poll()) is not None:
            if records:
                partition = TopicPartition(records[0].topic, records[0].partition)
                token = reader.tokens[partition]
                say("read", partition, token, records[0].offset, records[-1].offset)
                reader.commit({partition: records[-1].offset + 1})
                say("stored", partition, token, records[-1].offset + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("--session", type=float, help="seconds without a heartbeat until a reader is replaced")
    given = parser.parse_args()
    try:
        read(given.servers, given.topic, given.session)
    except (Fenced, PartitionsLost) as error:
        say("lost", error)
        return FENCED  # it may be started again
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FencepostError as error:
        sys.exit(f"exclusive readers: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
