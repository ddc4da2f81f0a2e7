"""Workers that share a topic: start as many as you like, stop and kill them as you like (at least once).

    fencepost topic create orders --partitions 6
    python examples/workers.py 127.0.0.1:9092 orders billing [--member NAME] [--session 6]

Each worker handles the records of its share of the partitions and commits after each batch. When the shares change, it
finishes what it has, commits, and gives the partitions up; so a worker that joins or leaves costs no record twice. A
worker that is killed leaves a batch that was not committed: another one handles it again.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from types import FrameType

from fencepost import FencepostError, PartitionsLost, Reader, ReadRecord, TimedOut, TooSlow, TopicPartition


def handle(record: ReadRecord, seconds: float) -> None:
    """Do the work. It may be done twice, so make it so that this does no harm."""
    time.sleep(seconds)
    print("did", f"{record.topic}-{record.partition}", record.offset, flush=True)


def names(partitions: frozenset[TopicPartition]) -> str:
    return " ".join(map(str, sorted(partitions)))


def work(servers: str, topic: str, group: str, member: str | None, session: float | None, seconds: float) -> None:
    is_over = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)  # a deploy: finish the batch, commit, leave

    def revoked(partitions: frozenset[TopicPartition]) -> None:
        reader.commit()  # what was handled counts; then the partitions go to others
        print("gives", names(partitions), flush=True)

    with Reader(
        servers,
        topic,
        group=group,
        member=member,
        on_assigned=lambda partitions: print("gets", names(partitions), flush=True),
        on_revoked=revoked,
        on_lost=lambda partitions: print("lost", names(partitions), flush=True),
        # With KIP-848 the server decides how long a session is; the classic protocol lets its members choose.
        group_protocol=None if session is None else "cooperative",
        session_timeout=session or 45.0,
    ) as reader:
        while not is_over:
            try:
                for record in reader.poll(1.0) or ():
                    handle(record, seconds)
                reader.commit()
            except TimedOut:
                continue
            except TooSlow as error:  # others have its partitions; the next poll joins again
                print("slow", error, flush=True)
            except PartitionsLost as error:  # while it worked: others handle these records again
                print("late", error, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--member", help="the name of a static member: its partitions wait for its restart")
    parser.add_argument("--session", type=float, help="seconds without a heartbeat until a worker is replaced")
    parser.add_argument("--seconds-per-record", type=float, default=0.0)
    given = parser.parse_args()
    work(given.servers, given.topic, given.group, given.member, given.session, given.seconds_per_record)


if __name__ == "__main__":
    try:
        main()
    except FencepostError as error:
        sys.exit(f"workers: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
