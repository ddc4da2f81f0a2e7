"""Take-overs since the start of the server: who was severed, who came, and how many late writes were refused.

They are for people who look at the console. They are in memory only, and bounded: the last `KEPT` of them, the first
names of each, and an index of `_INDEXED` resources, by which a refused write finds its take-over with one look-up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fencepost.core.own.ownership import OwnedResource
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.server.coordinators.guards import Resource
    from fencepost.server.net.session import Client

TAKEN_OVER: Final = "another owner takes over"
SILENT: Final = "silent for longer than its session"

KEPT: Final = 1000
NAMED: Final = 10
"""Resources that a take-over names; the others are only counted."""
_INDEXED: Final = 10_000
_INDEXED_OF_ONE: Final = 1000
_LONGEST: Final = 250
"""Characters of a client id: a client chooses it, and may choose a long one."""


@dataclass(slots=True, eq=False)
class SeveredOwner:
    """An owner that lost its resources."""

    number: int
    """Rises with each of them, from 1."""
    time_ms: Milliseconds
    group: str
    resources: tuple[OwnedResource, ...]
    """Those that it lost in this group, at most `NAMED`: with generation and token of the new owner, or its own if it
    was silent."""
    resource_count: int
    reason: str
    address: str
    client_id: str
    host: str
    by_address: str = ""
    """Of the new owner; of a silent owner's successor, once somebody owns one of the resources."""
    by_client_id: str = ""
    by_time_ms: Milliseconds = -1
    refused: int = 0
    """Writes of the severed owner to these resources that were refused since, because it does not own them."""

    def is_client(self, client: Client) -> bool:
        """Tell if this is the severed owner again: the same client id at the same address, over any connection."""
        return client.session.client_host == self.host and client.client_id[:_LONGEST] == self.client_id


class Takeovers:
    """The last take-overs. Only the loop uses it."""

    def __init__(self) -> None:
        self._kept: deque[SeveredOwner] = deque(maxlen=KEPT)
        self._newest: dict[Resource, SeveredOwner] = {}
        """The newest take-over of a resource, in order of time."""
        self._without_successor = 0
        """Number of silent owners in the index that nobody has followed. Without any, a grant costs nothing here."""
        self.total = 0
        """All since the start of the server, also those that are not kept."""

    def __iter__(self) -> Iterator[SeveredOwner]:
        """Yield those that are kept, the newest first."""
        return reversed(self._kept)

    def severed(
        self,
        owner: Client,
        group: str,
        lost: Sequence[OwnedResource],
        now: Milliseconds,
        *,
        by: Client | None = None,
        others: Sequence[Resource] = (),
    ) -> None:
        """Remember that an owner lost these resources, to the new owner `by` or because it was silent. `others` are
        resources that became free because an owner is one connection."""
        self.total += 1
        event = SeveredOwner(
            self.total, now, group, tuple(lost[:NAMED]), len(lost), SILENT if by is None else TAKEN_OVER,
            owner.peer, owner.client_id[:_LONGEST], owner.session.client_host,
        )  # fmt: skip
        if by is not None:
            _follow(event, by, now)
        else:
            self._without_successor += 1
        self._kept.append(event)
        for row in lost[:_INDEXED_OF_ONE]:
            self._index((group, row.name), event)
        for resource in others[:_INDEXED_OF_ONE]:
            self._index(resource, event)

    def _index(self, resource: Resource, event: SeveredOwner) -> None:
        self._newest.pop(resource, None)  # so that the order is that of the events
        self._newest[resource] = event
        if len(self._newest) > _INDEXED:
            del self._newest[next(iter(self._newest))]

    def granted(self, group: str, rows: Sequence[OwnedResource], claimant: Client, now: Milliseconds) -> None:
        """Remember who followed a silent owner."""
        if not self._without_successor:
            return
        for row in rows:
            event = self._newest.get((group, row.name))
            if event is not None and event.by_time_ms < 0:
                _follow(event, claimant, now)
                self._without_successor -= 1

    def refused(self, group: str, name: str, client: Client) -> None:
        """Count a refused write, if its sender is the one who lost the resource last."""
        event = self._newest.get((group, name))
        if event is not None and event.is_client(client):
            event.refused += 1


def _follow(event: SeveredOwner, by: Client, now: Milliseconds) -> None:
    event.by_address, event.by_client_id, event.by_time_ms = by.peer, by.client_id[:_LONGEST], now
