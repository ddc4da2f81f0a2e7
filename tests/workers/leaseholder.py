"""A process that owns with a session in three ways, and is stopped (SIGSTOP): what is its first answer after waking?

Prints `ready` when it owns, and after a pause longer than its session a line of JSON: for each way to ask, whether the
first question was answered with "lost".
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import fencepost

SESSION = 1.0


def says_lost(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except fencepost.Fenced:
        return True
    return False


def main(address: str, topic: str) -> None:
    with (
        fencepost.Producer(address) as producer,
        fencepost.Reader(address, topic) as reader,
        fencepost.hold(address, topic, ["held"], generation=1, session=SESSION) as held,
    ):
        claim = producer.own(topic, [f"{topic}-0"], generation=1, session=SESSION)
        reader.own(topic, ["read"], generation=1, session=SESSION)
        ways: dict[str, Callable[[], object]] = {
            "producer.send": lambda: producer.send(topic, b"late", partition=0),
            "producer.check_owned": producer.check_owned,
            "claim.check": claim.check,
            "hold.check": held.check,
            "reader.check_owned": reader.check_owned,
        }
        print("ready", flush=True)
        last = time.monotonic()
        while (now := time.monotonic()) - last < SESSION:
            last = now
            if says_lost(reader.check_owned):  # a reader has no thread that sends its heartbeats
                break  # stopped a moment before, and this was the first question
            time.sleep(0.01)
        print(json.dumps({way: says_lost(ask) for way, ask in ways.items()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
