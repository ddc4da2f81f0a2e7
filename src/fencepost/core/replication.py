"""How often the topics that fencepost creates are replicated, and what is wrong with one that is there.

A group of owners, a sink's progress and a copy's target must outlive any one broker: they are created with three
replicas, or as many as there are brokers. Of three, two must have a record before it is acknowledged: then one broker
may be gone and nothing is lost, and writing goes on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ENOUGH: Final = 3
"""Replicas: one broker may be away for maintenance, or dead, and a second copy of everything is still there."""


class Replication(NamedTuple):
    factor: int
    """How many brokers have the topic."""
    min_insync: int
    """How many of them must have a record before it is acknowledged (Kafka's `min.insync.replicas`)."""


def fitting(brokers: int, wanted: int | None = None) -> Replication:
    """Return what a new topic gets in a cluster of so many brokers; `wanted` is the user's own number of replicas."""
    factor = min(ENOUGH, max(1, brokers)) if wanted is None else wanted
    return Replication(factor, 2 if factor >= ENOUGH else 1)


def weakness(found: Replication, brokers: int) -> str | None:
    """Say what a broker's failure would do to this topic, and what to change; None if it survives one."""
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
