"""What administration answers: plain immutable values, named as the command line prints them."""

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
    """Node id; −1 where there is none at the moment."""
    brokers: tuple[BrokerNode, ...]


@dataclass(frozen=True, slots=True)
class Pong:
    address: str
    milliseconds: float
    apis: int
    """How many APIs the server offers."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; −1 leaves the number to the server's default."""

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
    """Node id; −1 where there is none at the moment."""
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
    """−1: no record is that new."""
    timestamp: Milliseconds
    """Of the record found by its time; −1 for the earliest and latest offsets."""


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition knows of one producer."""

    partition: int
    pid: Pid
    epoch: Epoch
    last_sequence: Sequence
    """H(P): the highest sequence accepted; −1 where the epoch has written nothing yet."""
    last_timestamp: Milliseconds
    transaction_start: Offset | None
    """First offset of the open transaction, if there is one."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    """`topic`, `broker`, `broker default`, `static` or `default`: where the value comes from."""
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class GroupSummary:
    name: str
    state: str
    kind: str
    """`classic` or `consumer`: by which protocol its members join."""
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
    """None: nothing was committed for this partition."""
    end: Offset | None
    """The partition's end; None where the topic is gone."""
    metadata: str = ""

    @property
    def lag(self) -> int | None:
        """Records behind the end; None where one of the two is not known."""
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """One partition of a reset: where the group stood and where it goes."""

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
    """-1: not known, since the server was started again."""
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class WaitingDescription:
    """A claim in line."""

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
