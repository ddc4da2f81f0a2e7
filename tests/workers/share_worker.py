"""A worker of a shared reading's history: reads, notes what it was handed out, works and commits, until it is told to
end or is killed. `tests/support/sharing_history.py` reads its notes. `without="lease"` removes a safeguard, to see that
the history notices."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from typing import Any

from fencepost import Fenced, FencepostError, PartitionsLost, Reader, TimedOut, TopicPartition, Unreachable
from fencepost.core.groups.holding import NEVER, Holding

_CHANCE = random.Random(os.getpid())


def main() -> None:
    order = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if order["without"] == "lease":  # it takes itself for a member until somebody tells it otherwise
        Holding.renew = _for_ever  # type: ignore[method-assign]
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    print("ready", flush=True)
    while not ending:
        try:
            reader = open_reader(order)
        except (Unreachable, TimedOut) as error:  # cut off while it begins
            print("not open:", error, flush=True)
            continue
        try:
            with reader:
                work(reader, order, ending)
        except Fenced as error:  # by its successor, or because its connection has ended: begin anew
            print("fenced:", error, flush=True)


def _for_ever(self: Holding, lease_end: float) -> None:
    self.lease_end = NEVER


def open_reader(order: dict[str, Any]) -> Reader:
    def revoked(partitions: frozenset[TopicPartition]) -> None:
        commit(reader)

    reader = Reader(
        order["servers"],
        order["source"],
        group=order["group"],
        group_protocol=order["protocol"],
        session_timeout=order["session"],
        processing_timeout=order["processing_timeout"],
        exclusive=order["exclusive"],
        on_revoked=revoked,
    )
    return reader


def work(reader: Reader, order: dict[str, Any], ending: list[int]) -> None:
    while not ending:
        asked_at = time.monotonic()
        try:
            records = reader.poll(0.05)
        except (TimedOut, PartitionsLost) as error:
            if not isinstance(error, TimedOut):
                print(error, flush=True)
            continue
        got_at = time.monotonic()
        if records:
            first, last = records[0], records[-1]
            token = reader.tokens[TopicPartition(first.topic, first.partition)]
            print("got", first.partition, token, first.offset, last.offset, asked_at, got_at, ".", flush=True)
            time.sleep(_CHANCE.random() * order["work"])
            commit(reader)


def commit(reader: Reader) -> None:
    try:
        reader.commit()
    except Fenced:
        raise
    except FencepostError as error:  # it was lost, or the server cannot be reached: a later commit has it, too
        print("not committed:", error, flush=True)


if __name__ == "__main__":
    main()
