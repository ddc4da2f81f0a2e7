"""Results of `Admin`: plain immutable values, with the field names that the command line prints. Those that the server
tells of itself too are in `core/rows.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.client.cluster.metadata import BrokerNode
from fencepost.core.rows import GroupDetails, OwnerDescription, TransactionDetails, WaitingDescription
from fencepost.types import Milliseconds, Offset


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str
    controller: int
    """Node id, or −1 if there is none."""
    brokers: tuple[BrokerNode, ...]


@dataclass(frozen=True, slots=True)
class Pong:
    address: str
    milliseconds: float
    apis: int
    """The number of APIs that the server offers."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; −1 means the server's default."""

    name: str
    partitions: int = -1
    replication: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    partition: int
    leader: int
    """Node id, or −1 if there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: UUID | None
    internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class OffsetAt:
    partition: int
    offset: Offset
    """−1 if no record is that new."""
    timestamp: Milliseconds
    """Of the record found by its time; −1 for the earliest and latest offsets."""


@dataclass(frozen=True, slots=True)
class GroupDescription(GroupDetails):
    coordinator: BrokerNode


@dataclass(frozen=True, slots=True)
class TransactionDescription(TransactionDetails):
    coordinator: BrokerNode


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One partition of a reset: the group's offset before and after."""

    topic: str
    partition: int
    before: Offset | None
    after: Offset


@dataclass(frozen=True, slots=True)
class LastOwner:
    """The last grant of a resource, whether it is still owned or not."""

    token: int
    since_ms: Milliseconds
    """−1 if unknown, because the server was restarted since."""
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class OwnersDescription:
    owners: tuple[OwnerDescription, ...]
    waiting: tuple[WaitingDescription, ...]
    """In order of arrival."""


@dataclass(frozen=True, slots=True)
class ClientQuotas:
    entity: Mapping[str, str | None]
    """Whom the quotas are for: the name of a user, client-id or ip by its type; None stands for the default."""
    quotas: Mapping[str, float]
    """By key, such as `producer_byte_rate`."""
