"""Results of `Admin`: plain immutable values, with the field names that the command line prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.client.cluster.metadata import BrokerNode
from fencepost.types import Epoch, Generation, Milliseconds, Offset, Pid, Sequence, TopicPartition


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
class TopicSummary:
    name: str
    topic_id: UUID | None
    partitions: int
    replication: int
    internal: bool


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
class ProducerState:
    """A partition's state of one producer."""

    partition: int
    pid: Pid
    epoch: Epoch
    last_sequence: Sequence
    """H(P): the highest sequence accepted; −1 if the epoch has written nothing yet."""
    last_timestamp: Milliseconds
    transaction_start: Offset | None
    """First offset of the open transaction; None if none is open."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    """The origin of the value: `topic`, `broker`, `broker default`, `static` or `default`."""
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class GroupSummary:
    name: str
    state: str
    kind: str
    """The protocol of its members: `classic` or `consumer`."""
    protocol_type: str
    """`consumer` for consumers; empty for a group that only stores offsets."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    kind: str
    assignor: str
    coordinator: BrokerNode
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    topic: str
    partition: int
    committed: Offset | None
    """None if nothing was committed."""
    end: Offset | None
    """The partition's end; None if the topic was deleted."""
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        """The number of offsets between the committed one and the end; None if either is unknown."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One partition of a reset: the group's offset before and after."""

    topic: str
    partition: int
    before: Offset | None
    after: Offset


@dataclass(frozen=True, slots=True)
class OwnerDescription:
    group: str
    resource: str
    generation: Generation
    token: int
    since_ms: Milliseconds
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class LastOwner:
    """The last grant of a resource, whether it is still owned or not."""

    token: int
    since_ms: Milliseconds
    """−1 if unknown, because the server was restarted since."""
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class WaitingDescription:
    """A claim that waits in line."""

    group: str
    resources: tuple[str, ...]
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class OwnersDescription:
    owners: tuple[OwnerDescription, ...]
    waiting: tuple[WaitingDescription, ...]
    """In order of arrival."""


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """One line of a list of transactional ids."""

    name: str
    state: str
    """Kafka's word: Empty, Ongoing, PrepareCommit, CompleteCommit …"""
    pid: Pid
    started_ms: Milliseconds | None
    """When the open transaction began; None if none is open."""


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    name: str
    state: str
    pid: Pid
    epoch: Epoch
    timeout_ms: Milliseconds
    started_ms: Milliseconds | None
    coordinator: BrokerNode
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ClientQuotas:
    entity: Mapping[str, str | None]
    """Whom the quotas are for: the name of a user, client-id or ip by its type; None stands for the default."""
    quotas: Mapping[str, float]
    """By key, such as `producer_byte_rate`."""
