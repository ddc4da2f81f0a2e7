"""The partitions that an owner may write: while a producer owns partitions of a topic, its records go only there.

The producer's queues keep the owned partitions per topic (`Queues.write_only_to`). `PlacingBackend` tells them after
every claim and release, whichever kind of server the claim went to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fencepost.client.own.claim import OwnBackend
from fencepost.client.produce.queues import Queues
from fencepost.core.own.claim_request import ClaimRequest
from fencepost.core.own.ownership import OwnedResource
from fencepost.types import partition_named


class PlacingBackend:
    """A backend that tells the queues what is owned. All claims of one producer share `owned`."""

    def __init__(self, backend: OwnBackend, queues: Queues, owned: dict[tuple[str, str], None]) -> None:
        self._backend = backend
        self._queues = queues
        self._owned = owned

    def claim(self, request: ClaimRequest) -> list[OwnedResource]:
        rows = self._backend.claim(request)
        self._owned.update(dict.fromkeys((request.group, row.name) for row in rows))
        self._tell()
        return rows

    def release(self, group: str, names: Sequence[str]) -> None:
        self._backend.release(group, names)
        for name in names:
            self._owned.pop((group, name), None)
        self._tell()

    def interrupt(self) -> None:
        self._backend.interrupt()

    def close(self) -> None:
        self._backend.close()

    def forget(self) -> None:
        self._backend.forget()

    def _tell(self) -> None:
        self._queues.write_only_to(owned_partitions(name for _, name in self._owned))


def owned_partitions(names: Iterable[str]) -> Mapping[str, frozenset[int]]:
    """Return the partitions among these resources, by topic. Any group counts: only the server knows the guard."""
    found: dict[str, set[int]] = {}
    for name in names:
        partition = partition_named(name)
        if partition is not None and str(partition) == name:
            found.setdefault(partition.topic, set()).add(partition.partition)
    return {topic: frozenset(partitions) for topic, partitions in found.items()}
