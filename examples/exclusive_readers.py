"""Readers that share a topic's partitions; no two of them ever hold the same one (OWN-10).

    fencepost topic create work --partitions 3 --set fencepost.reader.group=exclusive-readers
    python examples/exclusive_readers.py 127.0.0.1:9092 work [--partitions 0,1,2] [--session 5]

Start several processes. Each waits for its partitions (all by default), reads those that it is granted from the group's
committed position, and commits its progress. A process that dies or sends no heartbeats loses its partitions to the
others. If it was only paused, the server rejects its fetches and commits when it wakes up.

A reader that wakes up may still process records that it has in memory. If that matters, let the system that gets the
results check the token, which rises with every owner; this program prints it with each result.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading

from fencepost import Admin, Fenced, FencepostError, Reader
from fencepost.types import TopicPartition

GROUP = "exclusive-readers"
FENCED, FAILED = 3, 1


def read(servers: str, partition: TopicPartition, session: float, print_lock: threading.Lock) -> None:
    """Hold one partition and read it; raise Fenced when another reader has taken it over."""

    def say(*words: object) -> None:
        with print_lock:
            print(*words, flush=True)

    with Reader(servers, partition, start="committed", group=GROUP) as reader:
        resource = f"{partition.topic}-{partition.partition}"
        claim = reader.own(GROUP, [resource], wait=True, session=session)
        say("holds", resource, claim.token)
        while (records := reader.poll()) is not None:
            if records:
                say("read", resource, claim.token, records[0].offset, records[-1].offset)
                reader.commit()
                say("stored", resource, claim.token, records[-1].offset + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("--partitions", help="only these: numbers, separated by commas")
    parser.add_argument("--session", type=float, default=5.0, help="seconds without a heartbeat until it is replaced")
    given = parser.parse_args()
    with Admin(given.servers) as admin:
        there = {str(found.partition) for found in admin.describe_topic(given.topic).partitions}
    wanted = set(given.partitions.split(",")) if given.partitions else there
    if strange := wanted - there:
        parser.error(f"{given.topic} has no partition {', '.join(sorted(strange))}")
    lock = threading.Lock()
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()

    def hold(number: int) -> None:
        try:
            read(given.servers, TopicPartition(given.topic, number), given.session, lock)
        except Fenced as fenced:
            with lock:
                print("lost", f"{given.topic}-{number}", fenced, flush=True)
            ends.put(FENCED)
        except FencepostError as error:
            with lock:
                print("failed", f"{given.topic}-{number}", error, flush=True)
            ends.put(FAILED)

    for number in sorted(map(int, wanted)):
        threading.Thread(target=hold, args=(number,), daemon=True).start()
    return ends.get()  # the first loss ends the process, which may be started again


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FencepostError as error:
        sys.exit(f"exclusive readers: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
