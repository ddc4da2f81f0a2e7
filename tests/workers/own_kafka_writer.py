"""A writer process for the tests of `own` on Apache Kafka: a producer that owns, and floods until it is fenced.

    python -m tests.workers.own_kafka_writer ADDRESS TOPIC GROUP

Commands come on standard input, answers go to standard output, a line each:

    claim GENERATION   →  owns GENERATION TOKEN        a new producer claims, and floods
                          fenced DELIVERED UNKNOWN     when it is, or told to stop: how many of its records were
                                                       delivered, and of how many that is not known

Every record's value is "TOKEN NUMBER", so that the log tells afterwards who wrote what, and when. The partitions take
turns: each is written in a lane of its own, so that the transactions of several are open when it is stopped.
"""

from __future__ import annotations

from contextlib import suppress

from fencepost.client.produce.ticket import Ticket
from fencepost.errors import Fenced, FencepostError, SendFailed
from tests.support.kafka_owners import KafkaOwner
from tests.support.takeover_process import is_spoken_to, obey

PARTITIONS = 3
WINDOW = 50
"""Records that are sent before the oldest is looked at: some are queued, some in an open transaction, some ended."""


def flood(address: str, topic: str, group: str, generation: int) -> None:
    delivered = unknown = 0
    tickets: list[Ticket] = []
    producer = KafkaOwner(address, delivery_timeout=300.0)
    try:
        names = [f"{topic}-{partition}" for partition in range(PARTITIONS)]
        claim = producer.own(group, names, generation=generation)
        print("owns", claim.generation, claim.token, flush=True)
        number = 0
        with suppress(Fenced):
            while not is_spoken_to():  # told to stop
                tickets.append(producer.send(topic, b"%d %d" % (claim.token, number), partition=number % PARTITIONS))
                number += 1
                if len(tickets) > WINDOW:
                    tickets.pop(0).result(300)
                    delivered += 1
        for ticket in tickets:
            error = ticket.exception(300)
            delivered += error is None
            unknown += isinstance(error, SendFailed) and error.persisted == "unknown"
    finally:
        with suppress(FencepostError):
            producer.close(timeout=0)  # it does not give back: whoever takes over has to fence it
    print("fenced", delivered, unknown, flush=True)


if __name__ == "__main__":
    obey(flood)
