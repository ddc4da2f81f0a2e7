"""What a scripted cluster consists of: the tests change it, its brokers answer by it, and its network goes by it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from fencepost.client.cluster.addresses import Address
from fencepost.core.own.ownership import OwnershipTable
from fencepost.errors import FencepostError
from fencepost.testing.clock import HandWoundClock
from fencepost.testing.scripted.fates import Api
from fencepost.testing.scripted.log import MemoryLog

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
"""What fencepost's server offers besides."""


class Connected(Hashable, Protocol):
    """A connection as the server sees it."""

    def sever(self) -> None: ...


Owner: TypeAlias = Connected | str
"""A connection, or somebody of whom only the name is known."""


class ScriptedState:
    def __init__(self, clock: HandWoundClock, *, nodes: int, latency: float, knows_own: bool) -> None:
        self.clock = clock
        self.versions = {**VERSIONS, **OWNING} if knows_own else VERSIONS
        self.ownership: OwnershipTable[Owner] = OwnershipTable()
        self.notices_ends = True
        """Otherwise a connection that ended owns on: its end has not reached the server yet."""
        self.latency = latency
        self.addresses = {node: Address(f"10.0.0.{node + 1}", PORT) for node in range(nodes)}
        self.down: set[int] = set()
        self.keeps_out: dict[int, FencepostError] = {}
        """Nodes that let nobody in, and what they say."""
        self.logs: dict[str, list[MemoryLog]] = {}
        self.hidden: set[str] = set()
        """Topics that metadata answers LEADER_NOT_AVAILABLE for."""
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
