"""A process with a Producer that floods partitions while it owns them: one of several that take over from each other.

    python -m tests.workers.own_producer ADDRESS TOPIC GROUP ENGINE

ENGINE is "server" (what the server offers) or "kafka" (the one for Apache Kafka, whatever the server is). Commands
come on standard input, answers go to standard output, a line each:

    take GENERATION    →  owns GENERATION TOKEN     takes over at once; floods until it is fenced or told to stop
    wait               →  owns GENERATION TOKEN     when it is free: the owner's session is over, or it gave back
    stop                                            gives back
                       →  ended {"yes": […], "no": […], "unknown": […]}
                                                    what the ticket of every record says: is it in the log?

Every record's value is "TOKEN NUMBER", so that the log tells afterwards who wrote what, and when. The partitions take
turns: with the engine for Kafka, each is written in a lane of its own.
"""

from __future__ import annotations

import contextlib
import json
import sys

import fencepost
from fencepost.client.produce.ticket import Ticket
from tests.support.kafka_owners import KafkaOwner
from tests.support.takeover_process import is_spoken_to

PARTITIONS = 3
SESSION = 1.0
AT_ONCE = 10
AHEAD = 60
"""Records that are sent before the oldest is looked at: some are queued, some in flight, some settled."""


def flood(producer: fencepost.Producer, topic: str, token: int) -> list[Ticket]:
    tickets: list[Ticket] = []
    with contextlib.suppress(fencepost.Fenced):
        while not is_spoken_to():
            for _ in range(AT_ONCE):
                number = len(tickets)
                tickets.append(producer.send(topic, b"%d %d" % (token, number), partition=number % PARTITIONS))
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


def own(address: str, topic: str, group: str, engine: str, generation: int | None) -> None:
    # Small batches, so that many are under way at any moment.
    producer = (KafkaOwner if engine == "kafka" else fencepost.Producer)(address, batch_size=600)
    resources = [f"{topic}-{partition}" for partition in range(PARTITIONS)]
    wait = True if generation is None else None
    session = SESSION if engine == "server" else 0.0
    claim = producer.own(group, resources, generation=generation, wait=wait, session=session)
    print("owns", claim.generation, claim.token, flush=True)
    tickets = flood(producer, topic, claim.token)
    with contextlib.suppress(fencepost.Fenced):
        claim.release()
    print("ended", json.dumps(said(tickets)), flush=True)
    producer.close()


def main() -> None:
    address, topic, group, engine = sys.argv[1:5]
    for line in sys.stdin:
        word, *rest = line.split()
        if word in ("take", "wait"):
            own(address, topic, group, engine, int(rest[0]) if rest else None)


if __name__ == "__main__":
    main()
