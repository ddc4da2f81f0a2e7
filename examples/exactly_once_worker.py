"""Workers that read a topic, transform it and write the results, each record exactly once, whatever is killed.

    fencepost topic create orders --partitions 6
    fencepost topic create enriched --partitions 6
    python examples/exactly_once_worker.py 127.0.0.1:9092 orders enriched enrich [--member NAME] [--dead-letter TOPIC]

Start as many as you like, stop, kill and restart them as you like. The records of a batch and the worker's new place in
the topic are one transaction, so a worker that dies leaves nothing half done: another one repeats its batch. A record
that cannot be transformed is tried three times, and then goes to the dead-letter topic, if there is one.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time

from fencepost import FencepostError, Processor


def enrich(value: bytes | None, seconds: float) -> bytes:
    """Do the work. What it changes elsewhere may happen twice; what it returns is written once."""
    time.sleep(seconds)
    order = json.loads(value or b"")
    return json.dumps({**order, "total": order["price"] * order["count"]}).encode()


def work(given: argparse.Namespace) -> None:
    with Processor(
        given.servers,
        given.source,
        group=given.group,
        member=given.member,
        retries=2,
        dead_letter=given.dead_letter,
    ) as batches:
        signal.signal(signal.SIGTERM, lambda number, frame: batches.end())  # a deploy: finish the batch, commit, leave
        for batch in batches:
            done = 0
            with batch as out:
                for record in batch:
                    if batch.lost.is_set():
                        break  # another worker waits for a partition: roll back, and let it do the work
                    out.send(given.target, enrich(record.value, given.seconds_per_record), key=record.key)
                    done += 1
            print("did", done, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("group")
    parser.add_argument("--member", help="the name of a static member: after a restart it has the same partitions")
    parser.add_argument("--dead-letter", help="the topic for records that cannot be transformed")
    parser.add_argument("--seconds-per-record", type=float, default=0.0)
    work(parser.parse_args())


if __name__ == "__main__":
    try:
        main()
    except FencepostError as error:
        sys.exit(f"exactly_once_worker: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
