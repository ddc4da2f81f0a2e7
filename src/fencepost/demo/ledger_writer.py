"""A writer that owns a partition and writes to it until it is fenced: the demo pauses it and wakes it up too late.

    python -m fencepost.demo.ledger_writer SERVERS TOPIC GROUP

Prints a line of JSON when it owns the partition, and another when it is fenced, with the outcome of its records.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Final

import fencepost
from fencepost.demo.children import end_with_parent
from fencepost.errors import FencepostError, SendFailed

_AT_A_TIME: Final = 200


def main(servers: str, topic: str, group: str) -> None:
    end_with_parent()
    fates: Counter[str] = Counter()
    fenced = False
    producer = fencepost.Producer(servers, linger=0)
    claim = producer.own(group, [f"{topic}-0"], generation=1)
    tell(event="owns", generation=claim.generation, token=claim.token)
    number = 0
    while not fenced:
        tickets = []
        for _ in range(_AT_A_TIME):
            try:
                tickets.append(producer.send(topic, b"A %d" % number, partition=0))
            except fencepost.Fenced:  # the producer already knows, and does not send
                fates["no"] += 1
                fenced = True
            number += 1
        for ticket in tickets:
            error = ticket.exception()
            fates[fate(error)] += 1
            fenced = fenced or isinstance(error, fencepost.Fenced)
    tell(event="fenced", acknowledged=fates["yes"], refused=fates["no"], unknown=fates["unknown"])


def fate(error: FencepostError | None) -> str:
    """Return whether the record is in the log: yes, no, unknown."""
    if error is None:
        return "yes"
    return error.persisted if isinstance(error, SendFailed) else "unknown"


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
