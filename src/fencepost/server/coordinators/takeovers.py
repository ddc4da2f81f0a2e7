"""Take-overs since the start of the server: who was severed, who came, and how many late writes were refused.

They are for people who look at the console. They are in memory only, and bounded: the last `KEPT` of them, the first
names of each, and an index of `_INDEXED` entries, by which a refused write finds its take-over with one look-up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from fencepost.core.own.ownership import OwnedResource
from fencepost.types import Milliseconds

if TYPE_CHECKING:
    from fencepost.server.coordinators.guards import Resource
    from fencepost.server.net.session import Client

K = TypeVar("K")
_Loser: TypeAlias = tuple[str, str, str, str]
"""Group and resource, host and client id."""

TAKEN_OVER: Final = "another owner takes over"
SILENT: Final = "silent for longer than its session"

KEPT: Final = 1000
NAMED: Final = 10
"""Resources that a take-over names; the others are only counted."""
_INDEXED: Final = 10_000
_INDEXED_OF_ONE: Final = 1000
_MAX_CLIENT_ID_CHARACTERS: Final = 250
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
    by_address: str = ""
    """Of the new owner; of a silent owner's successor, once somebody owns one of the resources."""
    by_client_id: str = ""
    by_time_ms: Milliseconds = -1
    refused: int = 0
    """Writes of the severed owner to these resources that were refused since, because it does not own them."""


class Takeovers:
    """The last take-overs. Only the loop uses it."""

    def __init__(self) -> None:
        self._kept: deque[SeveredOwner] = deque(maxlen=KEPT)
        self._by_loser: dict[_Loser, SeveredOwner] = {}
        """The newest take-over in which a client lost a resource, the oldest first."""
        self._silent: dict[Resource, SeveredOwner] = {}
        """The resources of silent owners that nobody has owned since, the oldest first. Without any, a grant costs
        nothing here."""
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
            owner.peer, owner.client_id[:_MAX_CLIENT_ID_CHARACTERS],
        )  # fmt: skip
        self._kept.append(event)
        if by is not None:
            _follow(event, by, now)
        for row in lost[:_INDEXED_OF_ONE]:
            _put(self._by_loser, _loser(group, row.name, owner), event)
            if by is None:
                _put(self._silent, (group, row.name), event)
        for other_group, name in others[:_INDEXED_OF_ONE]:
            _put(self._by_loser, _loser(other_group, name, owner), event)

    def granted(self, group: str, rows: Sequence[OwnedResource], claimant: Client, now: Milliseconds) -> None:
        """Remember who followed a silent owner."""
        if not self._silent:
            return
        for row in rows:
            event = self._silent.pop((group, row.name), None)
            if event is not None and event.by_time_ms < 0:
                _follow(event, claimant, now)

    def refused(self, group: str, name: str, client: Client) -> None:
        """Count a refused write, if its sender has lost the resource: the same client id at the same address, over any
        connection."""
        event = self._by_loser.get(_loser(group, name, client))
        if event is not None:
            event.refused += 1


def _loser(group: str, name: str, client: Client) -> _Loser:
    return group, name, client.session.client_host, client.client_id[:_MAX_CLIENT_ID_CHARACTERS]


def _put(index: dict[K, SeveredOwner], key: K, event: SeveredOwner) -> None:
    index.pop(key, None)  # so that the order is that of the events
    index[key] = event
    if len(index) > _INDEXED:
        del index[next(iter(index))]


def _follow(event: SeveredOwner, by: Client, now: Milliseconds) -> None:
    event.by_address, event.by_client_id, event.by_time_ms = by.peer, by.client_id[:_MAX_CLIENT_ID_CHARACTERS], now
