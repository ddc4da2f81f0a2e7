"""A process with a Producer that floods a partition while it owns it: one of several that take over from each other.

Commands come on standard input, answers go to standard output, a line each:

    take GENERATION    →  owns GENERATION TOKEN     takes over at once; floods until it is fenced or told to stop
    wait               →  owns GENERATION TOKEN     when it is free: the owner's session is over, or it gave back
    stop                                            gives back
                       →  ended {"yes": […], "no": […], "unknown": […]}
                                                    what the ticket of every record says: is it in the log?

Every record's value is "TOKEN NUMBER", so that the log tells afterwards who wrote what, and when.
"""

from __future__ import annotations

import contextlib
import json
import sys

import fencepost
from fencepost.client.produce.ticket import Ticket
from tests.support.takeover_process import is_spoken_to

SESSION = 1.0
AT_ONCE = 10
AHEAD = 60


def flood(producer: fencepost.Producer, topic: str, token: int) -> list[Ticket]:
    tickets: list[Ticket] = []
    with contextlib.suppress(fencepost.Fenced):
        while not is_spoken_to():
            for _ in range(AT_ONCE):
                tickets.append(producer.send(topic, b"%d %d" % (token, len(tickets)), partition=0))
            if len(tickets) > AHEAD:
                tickets[-AHEAD].exception()
    return tickets


def said(tickets: list[Ticket]) -> dict[str, list[int]]:
    says: dict[str, list[int]] = {"yes": [], "no": [], "unknown": []}
    for number, ticket in enumerate(tickets):
        error = ticket.exception()
        if error is None:
            says["yes"].append(number)
        else:
            assert isinstance(error, fencepost.Fenced), repr(error)
            says[error.persisted].append(number)
    return says


def own(address: str, topic: str, group: str, generation: int | None) -> None:
    # Small batches, so that many are under way at any moment.
    producer = fencepost.Producer(address, batch_size=600)
    wait = True if generation is None else None
    claim = producer.own(group, [f"{topic}-0"], generation=generation, wait=wait, session=SESSION)
    print("owns", claim.generation, claim.token, flush=True)
    tickets = flood(producer, topic, claim.token)
    with contextlib.suppress(fencepost.Fenced):
        claim.release()
    print("ended", json.dumps(said(tickets)), flush=True)
    producer.close()


def main() -> None:
    address, topic, group = sys.argv[1:4]
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "take":
            own(address, topic, group, int(rest[0]))
        elif word == "wait":
            own(address, topic, group, None)


if __name__ == "__main__":
    main()
