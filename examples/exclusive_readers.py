"""Readers that share a topic's partitions: it is never the case that two of them hold the same one (OWN-10).

    python examples/exclusive_readers.py SERVERS TOPIC [--partitions 0,1,2] [--session 5]

Start it as often as you like. Each process waits for every partition it was told of (all of them by default), reads the
ones it is granted from where the group left off, and stores its position as it goes. A process that dies or falls
silent loses its partitions to the others; if it was only paused, it finds out when it wakes up: the server serves it
nothing and takes no position from it any more.

What a woken reader has in memory it may still hand out before it hears of its replacement. If that matters, let the
place where results go check the token, which rises with every owner: here it is printed with everything read.
"""

from __future__ import annotations

import argparse
import sys
import threading

from fencepost import Admin, Fenced, Reader
from fencepost.types import TopicPartition

GROUP = "exclusive-readers"
FENCED = 3


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
    if given.partitions:
        wanted = [int(number) for number in given.partitions.split(",")]
    else:
        with Admin(given.servers) as admin:
            wanted = [found.partition for found in admin.describe_topic(given.topic).partitions]
    lock = threading.Lock()
    lost = threading.Event()

    def hold(number: int) -> None:
        try:
            read(given.servers, TopicPartition(given.topic, number), given.session, lock)
        except Fenced as fenced:
            with lock:
                print("lost", f"{given.topic}-{number}", fenced, flush=True)
        finally:
            lost.set()

    for number in wanted:
        threading.Thread(target=hold, args=(number,), daemon=True).start()
    lost.wait()  # a reader that lost one partition was away: it ends, and may be started again
    return FENCED


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
