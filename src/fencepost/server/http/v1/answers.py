"""The answers of the HTTP API. Field names are those that the command line prints with `--json`, where it prints them.
The text of a field becomes its description in OpenAPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class BrokerJson:
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterJson:
    cluster_id: str
    controller: Annotated[int, "node id"]
    brokers: Annotated[list[BrokerJson], "the one node, at its first listener"]
    version: Annotated[str, "of the server"]


@dataclass(frozen=True, slots=True)
class TopicJson:
    name: str
    topic_id: str
    partitions: int
    internal: bool


@dataclass(frozen=True, slots=True)
class ConfigJson:
    name: str
    value: str | None
    source: Annotated[str, "topic, static or default"]


@dataclass(frozen=True, slots=True)
class TopicDetailsJson:
    name: str
    topic_id: str
    partitions: int
    internal: bool
    configs: Annotated[list[ConfigJson] | None, "null if the caller may not DESCRIBE_CONFIGS the topic"]


@dataclass(frozen=True, slots=True)
class PartitionJson:
    partition: int
    leader: Annotated[int, "node id"]
    start_offset: int
    end_offset: Annotated[int, "the high watermark: readers see what is before it"]
    stable_offset: Annotated[int, "the last stable offset: readers of committed records see what is before it"]
    size: Annotated[int | None, "bytes on disk; null if the caller may not DESCRIBE the cluster"]


@dataclass(frozen=True, slots=True)
class ProducerJson:
    partition: int
    pid: int
    epoch: int
    last_sequence: Annotated[int, "H(P): the highest sequence that was accepted; -1 if there is none yet"]
    last_timestamp: Annotated[int, "milliseconds since 1970, or -1"]
    transaction_start: Annotated[int | None, "first offset of the open transaction; null if none is open"]
    last_offset: Annotated[int, "of the last record, or of the marker that began the epoch"]
    duplicates: Annotated[int, "repeated batches of this epoch that were recognised since the partition was opened"]
    transactional_id: Annotated[str | None, "null if the pid has none, or the caller may not DESCRIBE it"]


@dataclass(frozen=True, slots=True)
class GroupJson:
    name: str
    state: str
    kind: Annotated[str, "classic or consumer"]
    protocol_type: str


@dataclass(frozen=True, slots=True)
class AssignedJson:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberJson:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[AssignedJson]


@dataclass(frozen=True, slots=True)
class GroupDetailsJson:
    name: str
    state: str
    kind: Annotated[str, "classic or consumer"]
    assignor: str
    members: list[MemberJson]


@dataclass(frozen=True, slots=True)
class OffsetJson:
    topic: str
    partition: int
    committed: int
    end: Annotated[int | None, "the end of the partition; null if it cannot be known"]
    lag: Annotated[int | None, "offsets from the committed one to the end, never negative"]
    metadata: str


@dataclass(frozen=True, slots=True)
class TransactionJson:
    name: Annotated[str, "the transactional id"]
    state: str
    pid: int
    epoch: int
    started_ms: Annotated[int | None, "when the open transaction began; null if none is open"]
    timeout_ms: int
    partitions: Annotated[list[AssignedJson], "those that the caller may DESCRIBE"]


@dataclass(frozen=True, slots=True)
class OwnerJson:
    group: str
    resource: str
    generation: int
    token: int
    since_ms: int
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class WaitingClaimJson:
    group: str
    place: Annotated[int, "in the line of its group, from 0"]
    resources: list[str]
    address: str
    client_id: str


@dataclass(frozen=True, slots=True)
class TakenResourceJson:
    resource: str
    generation: Annotated[int, "of the new owner; of the severed one, if it was silent"]
    token: int


@dataclass(frozen=True, slots=True)
class TakeoverJson:
    number: Annotated[int, "rises with each take-over, from 1 at the start of the server"]
    time_ms: int
    group: str
    resources: Annotated[list[TakenResourceJson], "at most 10 of them"]
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
class SinkJson:
    name: str
    query: str | None
    batch: Annotated[int | None, "the last committed micro-batch; null before the first"]
    rows: Annotated[int | None, "of that batch; null if an older version of fencepost has written it"]
    fence_ms: Annotated[int | None, "time that the step took, all attempts together"]
    look_ms: int | None
    freeze_ms: int | None
    publish_ms: int | None
    previous_commit_ms: Annotated[int | None, "of the batch before: a record is written before its own commit"]
    incarnation: int | None
    host: str | None
    process: int | None
    time_ms: Annotated[int | None, "when the last progress record was written"]
    warnings: Annotated[list[str], "writers that were replaced and still try; only what is certain"]
    readable: Annotated[bool, "false if the caller may not READ the sink's topic, or its last record is damaged"]


@dataclass(frozen=True, slots=True)
class CredentialJson:
    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class UserJson:
    name: str
    credentials: list[CredentialJson]


@dataclass(frozen=True, slots=True)
class AclJson:
    resource_type: str
    name: str
    pattern: Annotated[str, "LITERAL or PREFIXED"]
    principal: str
    host: str
    operation: str
    permission: Annotated[str, "ALLOW or DENY"]


@dataclass(frozen=True, slots=True)
class QuotaEntityJson:
    type: Annotated[str, "user, client-id or ip"]
    name: Annotated[str | None, "null: the default"]


@dataclass(frozen=True, slots=True)
class QuotaJson:
    entity: list[QuotaEntityJson]
    quota: str
    value: float


@dataclass(frozen=True, slots=True)
class ProblemJson:
    code: Annotated[str, "the name of Kafka's error code, or of the HTTP status"]
    message: str
