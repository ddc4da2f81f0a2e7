"""The state of a scripted cluster, which tests change and its brokers and network use."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from fencepost.client.cluster.addresses import Address
from fencepost.core.own.ownership import OwnershipTable
from fencepost.errors import FencepostError
from tests.support.clock import HandWoundClock
from tests.support.scripted.fates import Api
from tests.support.scripted.log import MemoryLog

PORT: Final = 9092

VERSIONS: Final[Mapping[int, tuple[int, int]]] = {
    Api.PRODUCE: (3, 11),
    Api.FETCH: (4, 12),
    Api.LIST_OFFSETS: (1, 7),
    Api.METADATA: (1, 12),
    Api.FIND_COORDINATOR: (1, 4),
    Api.API_VERSIONS: (0, 3),
    Api.INIT_PRODUCER_ID: (0, 4),
}

OWNING: Final[Mapping[int, tuple[int, int]]] = {Api.OWN: (0, 1), Api.DESCRIBE_OWNERS: (0, 0)}
"""The additional APIs of fencepost's server."""


class Connected(Hashable, Protocol):
    """A connection as the server sees it."""

    def sever(self) -> None: ...


Owner: TypeAlias = Connected | str
"""A connection, or the name of another client."""


class ScriptedState:
    def __init__(self, clock: HandWoundClock, *, nodes: int, latency: float, knows_own: bool) -> None:
        self.clock = clock
        self.versions = {**VERSIONS, **OWNING} if knows_own else VERSIONS
        self.ownership: OwnershipTable[Owner] = OwnershipTable()
        self.notices_ends = True
        """If False, a closed connection remains the owner: the server has not noticed its end yet."""
        self.latency = latency
        self.addresses = {node: Address(f"10.0.0.{node + 1}", PORT) for node in range(nodes)}
        self.down: set[int] = set()
        self.keeps_out: dict[int, FencepostError] = {}
        """Nodes that reject every connection, with their error."""
        self.logs: dict[str, list[MemoryLog]] = {}
        self.topic_ids: dict[str, UUID] = {}
        """What Metadata says of topics that have one."""
        self.hidden: set[str] = set()
        """Topics for which Metadata returns LEADER_NOT_AVAILABLE."""
        self.creates_topics = False

    def create(self, topic: str, partitions: int) -> None:
        nodes = list(self.addresses)
        logs = [MemoryLog() for _ in range(partitions)]
        for index, log in enumerate(logs):
            log.leader = nodes[index % len(nodes)]
        self.logs[topic] = logs

    def led(self, node: int, topic: str | None, partition: int) -> MemoryLog | None:
        logs = self.logs.get(topic or "", [])
        if partition < len(logs) and logs[partition].leader == node:
            return logs[partition]
        return None

    def sever(self, owners: Sequence[Owner]) -> None:
        for owner in owners:
            self.ownership.ended(owner)
            if not isinstance(owner, str):
                owner.sever()
