"""The replication of topics that fencepost creates, and warnings about existing ones.

Topics of owners, of a sink's progress and of a copy's target must survive the loss of any one broker. They get three
replicas, or as many as there are brokers. Of three, two must have a record before it is acknowledged, so one broker
can fail without losing records or stopping writes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ENOUGH: Final = 3
"""Replicas: while one broker is down, a second copy of every record still exists."""


class Replication(NamedTuple):
    factor: int
    """Brokers that have the topic."""
    min_insync: int
    """Brokers that must have a record before it is acknowledged (Kafka's `min.insync.replicas`)."""


def fitting(brokers: int, wanted: int | None = None) -> Replication:
    """Return the replication of a new topic; `wanted` is the number of replicas that the user asked for."""
    factor = min(ENOUGH, max(1, brokers)) if wanted is None else wanted
    return Replication(factor, 2 if factor >= ENOUGH else 1)


def weakness(found: Replication, brokers: int) -> str | None:
    """Describe what one broker's failure would do to this topic, and the remedy; None if the topic survives it."""
    best = fitting(brokers)
    if found.factor < best.factor:
        times = "once" if found.factor == 1 else f"{found.factor} times"
        return (
            f"replicated {times} although there are {brokers} brokers: without its brokers it cannot be read or "
            f"written; give it {best.factor} replicas (kafka-reassign-partitions)"
        )
    if found.min_insync < min(best.min_insync, found.factor):
        return (
            f"min.insync.replicas is {found.min_insync}: an acknowledged record may be lost with one broker; "
            f"set it to {best.min_insync}"
        )
    if brokers > 1 and found.min_insync >= found.factor:
        return (
            f"min.insync.replicas is {found.min_insync} of {found.factor} replicas: nothing can be written while one "
            f"broker is away; set it to {max(1, found.factor - 1)}"
        )
    return None
