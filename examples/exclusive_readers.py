"""Readers that share a topic's partitions: it is never the case that two of them hold the same one (OWN-10).

    fencepost topic create work --partitions 3 --set fencepost.reader.group=exclusive-readers
    python examples/exclusive_readers.py 127.0.0.1:9092 work [--partitions 0,1,2] [--session 5]

Start it as often as you like. Each process waits for every partition it was told of (all of them by default), reads the
ones it is granted from where the group left off, and stores its position as it goes. A process that dies or falls
silent loses its partitions to the others; if it was only paused, it finds out when it wakes up: the server serves it
nothing and takes no position from it any more.

What a woken reader has in memory it may still hand out before it hears of its replacement. If that matters, let the
place where results go check the token, which rises with every owner: here it is printed with everything read.
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
    """Holds one partition for as long as it is let; Fenced when it is not any more."""

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
    parser.add_argument("--partitions", help="only these, as numbers with commas")
    parser.add_argument("--session", type=float, default=5.0, help="silent for so many seconds: replaced")
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
    return ends.get()  # a reader that lost one partition was away: it ends, and may be started again


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FencepostError as error:
        sys.exit(f"exclusive readers: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
