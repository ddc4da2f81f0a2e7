"""Where an owner's records go: while a producer owns partitions of a topic, to those and to no others.

The producer's queues keep, per topic, the partitions that are owned (`Queues.write_only_to`). `PlacingRoad` tells them
after every claim and release, whichever kind of server the claim went to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fencepost.client.own.claim import Road
from fencepost.client.produce.queues import Queues
from fencepost.core.own.request import Demand, Held
from fencepost.types import partition_named


class PlacingRoad:
    """A road that tells the producer's queues what is owned. `held` is shared by all claims of one producer."""

    def __init__(self, road: Road, queues: Queues, held: dict[tuple[str, str], None]) -> None:
        self._road = road
        self._queues = queues
        self._held = held

    def claim(self, demand: Demand) -> list[Held]:
        rows = self._road.claim(demand)
        self._held.update(dict.fromkeys((demand.group, row.name) for row in rows))
        self._tell()
        return rows

    def release(self, group: str, names: Sequence[str]) -> None:
        self._road.release(group, names)
        for name in names:
            self._held.pop((group, name), None)
        self._tell()

    def interrupt(self) -> None:
        self._road.interrupt()

    def close(self) -> None:
        self._road.close()

    def forget(self) -> None:
        self._road.forget()

    def _tell(self) -> None:
        self._queues.write_only_to(owned_partitions(name for _, name in self._held))


def owned_partitions(names: Iterable[str]) -> Mapping[str, frozenset[int]]:
    """By topic, the partitions among these resources. In whichever group: only the server knows a topic's guard."""
    found: dict[str, set[int]] = {}
    for name in names:
        partition = partition_named(name)
        if partition is not None and str(partition) == name:
            found.setdefault(partition.topic, set()).add(partition.partition)
    return {topic: frozenset(partitions) for topic, partitions in found.items()}
