"""Rows: what the server tells of its topics, groups, producers and so on, one immutable type per thing.

`Admin`, `--json`, the HTTP API and the console share them. Their field names are what programs read. The text of a
field becomes its description in OpenAPI. A row with more fields extends one with fewer, for those who know less.
"""

from __future__ import annotations

import base64
import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any
from uuid import UUID

from fencepost.types import Epoch, Generation, Milliseconds, Offset, Pid, Sequence, TopicPartition


def plain(value: Any) -> Any:
    """Convert a value to what JSON can carry: dataclasses and named tuples to objects, ids to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def json_bytes(data: bytes | None) -> Any:
    """Convert a key or value of a record to what JSON can carry: text as it is, other bytes in base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def lag_between(committed: int, end: int) -> int:
    """Return the lag of a group. A client may commit any offset, also one behind the end."""
    return end - committed if end > committed else 0


@dataclass(frozen=True, slots=True)
class BrokerRow:
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterRow:
    cluster_id: str
    controller: Annotated[int, "node id"]
    brokers: Annotated[list[BrokerRow], "the one node, at its first listener"]
    version: Annotated[str, "of the server"]


@dataclass(frozen=True, slots=True)
class TopicRow:
    name: str
    topic_id: UUID | None
    partitions: int
    internal: bool


@dataclass(frozen=True, slots=True)
class TopicSummary(TopicRow):
    replication: int


@dataclass(frozen=True, slots=True)
class ConfigRow:
    name: str
    value: str | None
    source: Annotated[str, "the origin of the value: topic, broker, broker default, static or default"]


@dataclass(frozen=True, slots=True)
class ConfigEntry(ConfigRow):
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class TopicDetailsRow(TopicRow):
    configs: Annotated[list[ConfigRow] | None, "null if the caller may not DESCRIBE_CONFIGS the topic"]


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    partition: int
    leader: Annotated[int, "node id"]
    start_offset: int
    end_offset: Annotated[int, "the high watermark: readers see what is before it"]
    stable_offset: Annotated[int, "the last stable offset: readers of committed records see what is before it"]
    size: Annotated[int | None, "bytes on disk; null if the caller may not DESCRIBE the cluster"]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A partition's state of one producer."""

    partition: int
    pid: Pid
    epoch: Epoch
    last_sequence: Annotated[Sequence, "H(P): the highest sequence that was accepted; -1 if there is none yet"]
    last_timestamp: Annotated[Milliseconds, "milliseconds since 1970, or -1"]
    transaction_start: Annotated[Offset | None, "first offset of the open transaction; null if none is open"]


@dataclass(frozen=True, slots=True)
class ProducerDetails(ProducerState):
    last_offset: Annotated[int, "of the last record, or of the marker that began the epoch"]
    duplicates: Annotated[int, "repeated batches of this epoch that were recognised since the partition was opened"]
    transactional_id: Annotated[str | None, "null if the pid has none, or the caller may not DESCRIBE it"]


@dataclass(frozen=True, slots=True)
class GroupSummary:
    name: str
    state: str
    kind: Annotated[str, "the protocol of its members: classic or consumer"]
    protocol_type: Annotated[str, "consumer for consumers; empty for a group that only stores offsets"]


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDetails:
    name: str
    state: str
    kind: Annotated[str, "classic or consumer"]
    assignor: str
    members: tuple[GroupMember, ...]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    topic: str
    partition: int
    committed: Annotated[Offset | None, "null if nothing was committed"]
    end: Annotated[Offset | None, "the end of the partition; null if it cannot be known"]
    metadata: str = ""
    lag: Annotated[int | None, "offsets from the committed one to the end, never negative"] = field(init=False)

    def __post_init__(self) -> None:
        known = self.committed is not None and self.end is not None
        object.__setattr__(self, "lag", lag_between(self.committed or 0, self.end or 0) if known else None)


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    """One line of a list of transactional ids."""

    name: Annotated[str, "the transactional id"]
    state: Annotated[str, "Kafka's word: Empty, Ongoing, PrepareCommit, CompleteCommit …"]
    pid: Pid
    started_ms: Annotated[Milliseconds | None, "when the open transaction began; null if none is open"]


@dataclass(frozen=True, slots=True)
class TransactionDetails(TransactionSummary):
    epoch: Epoch
    timeout_ms: Milliseconds
    partitions: Annotated[tuple[TopicPartition, ...], "those that the caller may DESCRIBE"]


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
class WaitingDescription:
    """A claim that waits in line."""

    group: str
    resources: tuple[str, ...]
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class WaitingClaimRow(WaitingDescription):
    place: Annotated[int, "in the line of its group, from 0"]


@dataclass(frozen=True, slots=True)
class TakenResourceRow:
    resource: str
    generation: Annotated[int, "of the new owner; of the severed one, if it was silent"]
    token: int


@dataclass(frozen=True, slots=True)
class TakeoverRow:
    number: Annotated[int, "rises with each take-over, from 1 at the start of the server"]
    time_ms: int
    group: str
    resources: Annotated[list[TakenResourceRow], "at most 10 of them"]
    resource_count: int
    reason: Annotated[str, "another owner takes over, or silent for longer than its session"]
    severed_address: str
    severed_client_id: str
    by_address: Annotated[str | None, "of the new owner; null if nobody has followed a silent one yet"]
    by_client_id: str | None
    by_time_ms: int | None
    refused_writes: Annotated[
        int,
        "batches to these resources, refused since, of the severed client: same client id and address, any connection",
    ]


@dataclass(frozen=True, slots=True)
class SinkRow:
    name: str
    query: str | None = None
    batch: Annotated[int | None, "the last committed micro-batch; null before the first"] = None
    rows: Annotated[int | None, "of that batch; null if it is not known"] = None
    fence_ms: Annotated[int | None, "time that the step took, all attempts together"] = None
    look_ms: int | None = None
    freeze_ms: int | None = None
    publish_ms: int | None = None
    previous_commit_ms: Annotated[int | None, "of the batch before: a record is written before its own commit"] = None
    incarnation: int | None = None
    host: str | None = None
    process: int | None = None
    time_ms: Annotated[int | None, "when the last progress record was written"] = None
    warnings: Annotated[list[str], "writers that were replaced and still try; only what is certain"] = field(
        default_factory=list
    )
    readable: Annotated[bool, "false if the caller may not READ the sink's topic, or its last record is damaged"] = True


@dataclass(frozen=True, slots=True)
class CredentialRow:
    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class UserRow:
    name: str
    credentials: list[CredentialRow]


@dataclass(frozen=True, slots=True)
class AclRow:
    resource_type: str
    name: str
    pattern: Annotated[str, "LITERAL or PREFIXED"]
    principal: str
    host: str
    operation: str
    permission: Annotated[str, "ALLOW or DENY"]


@dataclass(frozen=True, slots=True)
class QuotaEntityRow:
    type: Annotated[str, "user, client-id or ip"]
    name: Annotated[str | None, "null: the default"]


@dataclass(frozen=True, slots=True)
class QuotaRow:
    entity: list[QuotaEntityRow]
    quota: str
    value: float


@dataclass(frozen=True, slots=True)
class ProblemRow:
    code: Annotated[str, "the name of Kafka's error code, or of the HTTP status"]
    message: str
