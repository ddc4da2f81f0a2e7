"""Every API as a client without permissions meets it: a request, the codes of a refusal, the ACLs that suffice.

The codes are those of Apache Kafka 4.3.1 with its StandardAuthorizer; `tests/integration/test_authorization.py` tries
the same cases on both servers.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.errors import ErrorCode
from fencepost.wire import hot
from tests.support.batches import batch
from tests.support.raw import FETCH, PRODUCE, RawClient

TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TXN: Final = ResourceType.TRANSACTIONAL_ID

NO_TOPIC: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TXN: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
REFUSALS: Final = frozenset({NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TXN})


class Names(NamedTuple):
    """The resources of one case: they exist, and nothing else uses them."""

    topic: str
    topic_id: uuid.UUID
    group: str
    txn: str

    def of(self, kind: ResourceType) -> str:
        return {TOPIC: self.topic, GROUP: self.group, CLUSTER: CLUSTER_NAME, TXN: self.txn}[kind]


Grant = tuple[ResourceType, Operation]


class Case(NamedTuple):
    key: int
    version: int
    fields: Callable[[Names], Mapping[str, Any]]
    refused: tuple[ErrorCode, ...]
    """The codes in the answer to a client without any permission, in order, without repetitions and NONE."""
    grants: tuple[Grant, ...]
    """Permissions that suffice together; without one of them something is refused."""
    needs_topic: bool = True
    after: str = ""
    """A case whose request an administrator makes first."""
    hidden: str = ""
    """If nothing is refused: the field of the answer that is empty for a client without permissions."""


def codes(answer: Any) -> tuple[ErrorCode, ...]:
    """The error codes in an answer, in order, without repetitions and NONE."""
    return tuple(dict.fromkeys(code for code in _codes(answer) if code is not ErrorCode.NONE))


def _codes(value: Any) -> Iterator[ErrorCode]:
    if dataclasses.is_dataclass(value):
        items: list[tuple[str, Any]] = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif hasattr(value, "_asdict"):
        items = list(value._asdict().items())
    elif isinstance(value, list | tuple):
        items = [("", each) for each in value]
    else:
        return
    for name, each in items:
        if name.endswith("error_code") and each is not None:
            yield ErrorCode.of(each)
        else:
            yield from _codes(each)


def attempt(client: RawClient, case: Case, names: Names) -> Any:
    fields = case.fields(names)
    if case.key == PRODUCE:
        topic = fields["topic"]
        wanted = hot.ProduceTopic(
            name=topic if isinstance(topic, str) else None,
            topic_id=topic if isinstance(topic, uuid.UUID) else None,
            partitions=[hot.ProducePartition(0, memoryview(fields["batch"]))],
        )
        request = hot.ProduceRequest(
            transactional_id=fields.get("transactional_id"), acks=-1, timeout_ms=10_000, topics=[wanted]
        )
        body = b"".join(hot.encode_produce_request(case.version, request))
        client.send_frame(client.frame_of(PRODUCE, case.version, body))
        return client.receive()[1]
    if case.key == FETCH:
        client.send_fetch(fields["topic"], 0, version=case.version)
        return client.receive()[1]
    return client.call(case.key, case.version, **fields)


def _partition(**more: Any) -> Callable[[Names], Mapping[str, Any]]:
    return lambda names: {"topics": [{"name": names.topic, "partitions": [{"partition_index": 0, **more}]}]}


def _config(kind: int, name: str | None, **more: Any) -> Callable[[Names], Mapping[str, Any]]:
    return lambda names: {
        "resources": [
            {
                "resource_type": kind,
                "resource_name": names.of({2: TOPIC, 32: GROUP}[kind]) if name is None else name,
                **more,
            }
        ],
        "validate_only": True,
        "include_synonyms": False,
        "include_documentation": False,
    }


def _markers(names: Names) -> Mapping[str, Any]:
    partitions = [{"name": names.topic, "partition_indexes": [0]}]
    return {
        "markers": [{**_PRODUCER, "transaction_result": False, "topics": partitions, "coordinator_epoch": 0}],
    }


_MEMBER: Final = {"member_id": "", "group_instance_id": None}
_OFFSET: Final = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
_PROTOCOLS: Final = [{"name": "range", "metadata": b""}]
_NEW_TOPIC: Final = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
_PRODUCER: Final = {"producer_id": 1_000_000, "producer_epoch": 0}
_TXN_WRITE: Final = (TXN, Operation.WRITE)
_SET_RETENTION: Final = [{"name": "retention.ms", "value": "100000", "config_operation": 0}]
_ACL: Final = {
    "resource_type": 2,
    "resource_name": "none",
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
_ACL_FILTER: Final = {
    "resource_type_filter": 2,
    "resource_name_filter": "none",
    "pattern_type_filter": 3,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}

CASES: Final[Mapping[str, Case]] = {
    "Produce": Case(
        0, 9, lambda n: {"topic": n.topic, "batch": batch([b"1"])}, (NO_TOPIC,), ((TOPIC, Operation.WRITE),)
    ),
    "Produce by id": Case(
        0, 13, lambda n: {"topic": n.topic_id, "batch": batch([b"1"])}, (NO_TOPIC,), ((TOPIC, Operation.WRITE),)
    ),
    "Produce to an unknown id": Case(
        0, 13, lambda n: {"topic": uuid.UUID(int=5), "batch": batch([b"1"])}, (ErrorCode.UNKNOWN_TOPIC_ID,), ()
    ),
    "Produce in a transaction": Case(
        0,
        9,
        lambda n: {
            "topic": n.topic,
            "transactional_id": n.txn,
            "batch": batch([b"1"], pid=1_000_000, epoch=0, sequence=0, attributes=0x10),
        },
        (NO_TXN,),
        (_TXN_WRITE, (TOPIC, Operation.WRITE)),
    ),
    "Fetch": Case(1, 12, lambda n: {"topic": n.topic}, (NO_TOPIC,), ((TOPIC, Operation.READ),)),
    "Fetch by id": Case(1, 13, lambda n: {"topic": n.topic_id}, (NO_TOPIC,), ((TOPIC, Operation.READ),)),
    "ListOffsets": Case(
        2,
        7,
        lambda n: {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": n.topic,
                    "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
                }
            ],
        },
        (NO_TOPIC,),
        ((TOPIC, Operation.DESCRIBE),),
    ),
    "Metadata": Case(
        3,
        12,
        lambda n: {
            "topics": [{"topic_id": None, "name": n.topic}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
        (NO_TOPIC,),
        ((TOPIC, Operation.DESCRIBE),),
    ),
    "Metadata by id": Case(
        3,
        12,
        lambda n: {
            "topics": [{"topic_id": n.topic_id, "name": None}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
        (NO_TOPIC,),
        ((TOPIC, Operation.DESCRIBE),),
    ),
    "Metadata of all topics": Case(
        3,
        12,
        lambda n: {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
        (),
        ((TOPIC, Operation.DESCRIBE),),
        hidden="topics",
    ),
    "Metadata of a new topic": Case(
        3,
        12,
        lambda n: {
            "topics": [{"topic_id": None, "name": n.topic}],
            "allow_auto_topic_creation": True,
            "include_topic_authorized_operations": False,
        },
        (NO_TOPIC,),
        ((TOPIC, Operation.DESCRIBE), (TOPIC, Operation.CREATE)),
        needs_topic=False,
    ),
    "OffsetCommit": Case(
        8,
        8,
        lambda n: {
            "group_id": n.group,
            "generation_id_or_member_epoch": -1,
            **_MEMBER,
            "topics": [{"name": n.topic, "partitions": [_OFFSET]}],
        },
        (NO_GROUP,),
        ((GROUP, Operation.READ), (TOPIC, Operation.READ)),
    ),
    "OffsetFetch": Case(
        9,
        8,
        lambda n: {
            "groups": [{"group_id": n.group, "topics": [{"name": n.topic, "partition_indexes": [0]}]}],
            "require_stable": False,
        },
        (NO_GROUP,),
        ((GROUP, Operation.DESCRIBE), (TOPIC, Operation.DESCRIBE)),
    ),
    "OffsetFetch of one group": Case(
        9,
        7,
        lambda n: {
            "group_id": n.group,
            "topics": [{"name": n.topic, "partition_indexes": [0]}],
            "require_stable": False,
        },
        (NO_GROUP,),
        ((GROUP, Operation.DESCRIBE), (TOPIC, Operation.DESCRIBE)),
    ),
    "FindCoordinator of a group": Case(
        10,
        4,
        lambda n: {"key_type": 0, "coordinator_keys": [n.group]},
        (NO_GROUP,),
        ((GROUP, Operation.DESCRIBE),),
    ),
    "FindCoordinator of a transactional id": Case(
        10, 4, lambda n: {"key_type": 1, "coordinator_keys": [n.txn]}, (NO_TXN,), ((TXN, Operation.DESCRIBE),)
    ),
    "JoinGroup": Case(
        11,
        5,
        lambda n: {
            "group_id": n.group,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            **_MEMBER,
            "protocol_type": "consumer",
            "protocols": _PROTOCOLS,
        },
        (NO_GROUP,),
        ((GROUP, Operation.READ),),
    ),
    "Heartbeat": Case(
        12,
        3,
        lambda n: {"group_id": n.group, "generation_id": 1, **_MEMBER},
        (NO_GROUP,),
        ((GROUP, Operation.READ),),
    ),
    "LeaveGroup": Case(
        13,
        3,
        lambda n: {"group_id": n.group, "members": [{"member_id": "x", "group_instance_id": None}]},
        (NO_GROUP,),
        ((GROUP, Operation.READ),),
    ),
    "SyncGroup": Case(
        14,
        3,
        lambda n: {"group_id": n.group, "generation_id": 1, **_MEMBER, "assignments": []},
        (NO_GROUP,),
        ((GROUP, Operation.READ),),
    ),
    "DescribeGroups": Case(
        15,
        5,
        lambda n: {"groups": [n.group], "include_authorized_operations": True},
        (NO_GROUP,),
        ((GROUP, Operation.DESCRIBE),),
    ),
    "ListGroups": Case(
        16,
        4,
        lambda n: {"states_filter": []},
        (),
        ((GROUP, Operation.DESCRIBE),),
        after="OffsetCommit",
        hidden="groups",
    ),
    "ApiVersions": Case(18, 0, lambda n: {}, (), ()),
    "CreateTopics": Case(
        19,
        7,
        lambda n: {
            "topics": [{"name": n.topic, **_NEW_TOPIC}],
            "timeout": 10_000,
            "validate_only": True,
        },
        (NO_TOPIC,),
        ((CLUSTER, Operation.CREATE), (TOPIC, Operation.DESCRIBE_CONFIGS)),
        needs_topic=False,
    ),
    "DeleteTopics": Case(
        20,
        6,
        lambda n: {"topics": [{"name": n.topic, "topic_id": None}], "timeout": 10_000},
        (NO_TOPIC,),
        ((TOPIC, Operation.DELETE),),
    ),
    "DeleteTopics by id": Case(
        20,
        6,
        lambda n: {"topics": [{"name": None, "topic_id": n.topic_id}], "timeout": 10_000},
        (NO_TOPIC,),
        ((TOPIC, Operation.DELETE),),
    ),
    "DeleteTopics without the topic": Case(
        20,
        6,
        lambda n: {"topics": [{"name": n.topic, "topic_id": None}], "timeout": 10_000},
        (NO_TOPIC,),
        ((TOPIC, Operation.DELETE),),
        needs_topic=False,
    ),
    "DeleteRecords": Case(
        21,
        1,
        lambda n: {**_partition(offset=0)(n), "timeout": 10_000},
        (NO_TOPIC,),
        ((TOPIC, Operation.DELETE),),
    ),
    "InitProducerId": Case(
        22,
        4,
        lambda n: {"transactional_id": None, "transaction_timeout": 10_000, "producer_id": -1, "producer_epoch": -1},
        (NO_CLUSTER,),
        ((CLUSTER, Operation.IDEMPOTENT_WRITE),),
    ),
    "InitProducerId for a writer": Case(
        22,
        4,
        lambda n: {"transactional_id": None, "transaction_timeout": 10_000, "producer_id": -1, "producer_epoch": -1},
        (NO_CLUSTER,),
        ((TOPIC, Operation.WRITE),),
    ),
    "InitProducerId with a transactional id": Case(
        22,
        4,
        lambda n: {"transactional_id": n.txn, "transaction_timeout": 10_000, "producer_id": -1, "producer_epoch": -1},
        (NO_TXN,),
        (_TXN_WRITE,),
    ),
    "OffsetForLeaderEpoch": Case(
        23,
        3,
        lambda n: {
            "replica_id": -1,
            "topics": [
                {
                    "topic": n.topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        (NO_TOPIC,),
        ((TOPIC, Operation.DESCRIBE),),
    ),
    "AddPartitionsToTxn": Case(
        24,
        3,
        lambda n: {
            "v3_and_below_transactional_id": n.txn,
            "v3_and_below_producer_id": 1_000_000,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": n.topic, "partitions": [0]}],
        },
        (NO_TXN,),
        (_TXN_WRITE, (TOPIC, Operation.WRITE)),
    ),
    "AddOffsetsToTxn": Case(
        25,
        3,
        lambda n: {"transactional_id": n.txn, **_PRODUCER, "group_id": n.group},
        (NO_TXN,),
        (_TXN_WRITE, (GROUP, Operation.READ)),
    ),
    "EndTxn": Case(
        26, 3, lambda n: {"transactional_id": n.txn, **_PRODUCER, "committed": True}, (NO_TXN,), (_TXN_WRITE,)
    ),
    "WriteTxnMarkers": Case(27, 1, _markers, (NO_CLUSTER,), ((CLUSTER, Operation.CLUSTER_ACTION),)),
    "WriteTxnMarkers by an administrator": Case(27, 1, _markers, (NO_CLUSTER,), ((CLUSTER, Operation.ALTER),)),
    "TxnOffsetCommit": Case(
        28,
        3,
        lambda n: {
            "transactional_id": n.txn,
            "group_id": n.group,
            **_PRODUCER,
            "generation_id": -1,
            **_MEMBER,
            "topics": [{"name": n.topic, "partitions": [_OFFSET]}],
        },
        (NO_TXN,),
        (_TXN_WRITE, (GROUP, Operation.READ), (TOPIC, Operation.READ)),
    ),
    "DescribeAcls": Case(29, 2, lambda n: _ACL_FILTER, (NO_CLUSTER,), ((CLUSTER, Operation.DESCRIBE),)),
    "CreateAcls": Case(30, 2, lambda n: {"creations": [_ACL]}, (NO_CLUSTER,), ((CLUSTER, Operation.ALTER),)),
    "DeleteAcls": Case(31, 2, lambda n: {"filters": [_ACL_FILTER]}, (NO_CLUSTER,), ((CLUSTER, Operation.ALTER),)),
    "DescribeConfigs of a topic": Case(
        32, 4, _config(2, None, configuration_keys=None), (NO_TOPIC,), ((TOPIC, Operation.DESCRIBE_CONFIGS),)
    ),
    "DescribeConfigs of a broker": Case(
        32, 4, _config(4, "1", configuration_keys=None), (NO_CLUSTER,), ((CLUSTER, Operation.DESCRIBE_CONFIGS),)
    ),
    "DescribeConfigs of a group": Case(
        32, 4, _config(32, None, configuration_keys=None), (NO_GROUP,), ((GROUP, Operation.DESCRIBE_CONFIGS),)
    ),
    "AlterConfigs of a topic": Case(
        33, 1, _config(2, None, configs=_SET_RETENTION), (NO_TOPIC,), ((TOPIC, Operation.ALTER_CONFIGS),)
    ),
    "AlterConfigs of a broker": Case(
        33, 1, _config(4, "1", configs=[]), (NO_CLUSTER,), ((CLUSTER, Operation.ALTER_CONFIGS),)
    ),
    "AlterReplicaLogDirs": Case(
        34,
        1,
        lambda n: {"dirs": [{"path": "/elsewhere", "topics": [{"name": n.topic, "partitions": [0]}]}]},
        (NO_CLUSTER,),
        ((CLUSTER, Operation.ALTER),),
    ),
    "DescribeLogDirs": Case(35, 4, lambda n: {"topics": None}, (NO_CLUSTER,), ((CLUSTER, Operation.DESCRIBE),)),
    "CreatePartitions": Case(
        37,
        1,
        lambda n: {
            "topics": [{"name": n.topic, "count": 2, "assignments": None}],
            "timeout": 10_000,
            "validate_only": True,
        },
        (NO_TOPIC,),
        ((TOPIC, Operation.ALTER),),
    ),
    "DeleteGroups": Case(42, 1, lambda n: {"groups_names": [n.group]}, (NO_GROUP,), ((GROUP, Operation.DELETE),)),
    "ElectLeaders": Case(
        43,
        1,
        lambda n: {
            "election_type": 0,
            "topic_partitions": [{"topic": n.topic, "partitions": [0]}],
            "timeout": 10_000,
        },
        (NO_CLUSTER,),
        ((CLUSTER, Operation.ALTER),),
    ),
    "IncrementalAlterConfigs of a topic": Case(
        44, 1, _config(2, None, configs=_SET_RETENTION), (NO_TOPIC,), ((TOPIC, Operation.ALTER_CONFIGS),)
    ),
    "IncrementalAlterConfigs of a broker": Case(
        44, 1, _config(4, "1", configs=[]), (NO_CLUSTER,), ((CLUSTER, Operation.ALTER_CONFIGS),)
    ),
    "IncrementalAlterConfigs of a group": Case(
        44, 1, _config(32, None, configs=[]), (NO_GROUP,), ((GROUP, Operation.ALTER_CONFIGS),)
    ),
    "AlterPartitionReassignments": Case(
        45,
        0,
        lambda n: {
            "timeout": 10_000,
            "topics": [{"name": n.topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
        },
        (NO_CLUSTER,),
        ((CLUSTER, Operation.ALTER),),
    ),
    "DescribeQuorum": Case(
        55,
        1,
        lambda n: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
        (NO_CLUSTER,),
        ((CLUSTER, Operation.DESCRIBE),),
    ),
    "UpdateFeatures": Case(
        57,
        1,
        lambda n: {
            "timeout": 10_000,
            "feature_updates": [{"feature": "f", "max_version_level": 1, "upgrade_type": 1}],
            "validate_only": False,
        },
        (NO_CLUSTER,),
        ((CLUSTER, Operation.ALTER),),
    ),
    "ListPartitionReassignments": Case(
        46, 0, lambda n: {"timeout": 10_000, "topics": None}, (NO_CLUSTER,), ((CLUSTER, Operation.DESCRIBE),)
    ),
    "OffsetDelete": Case(
        47,
        0,
        lambda n: {
            "group_id": n.group,
            "topics": [{"name": n.topic, "partitions": [{"partition_index": 0}]}],
        },
        (NO_GROUP,),
        ((GROUP, Operation.DELETE), (TOPIC, Operation.READ)),
        after="OffsetCommit",
    ),
    "DescribeClientQuotas": Case(
        48,
        1,
        lambda n: {"components": [], "strict": False},
        (NO_CLUSTER,),
        ((CLUSTER, Operation.DESCRIBE_CONFIGS),),
    ),
    "AlterClientQuotas": Case(
        49,
        1,
        lambda n: {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": True}],
                }
            ],
            "validate_only": True,
        },
        (NO_CLUSTER,),
        ((CLUSTER, Operation.ALTER_CONFIGS),),
    ),
    "DescribeUserScramCredentials": Case(
        50, 0, lambda n: {"users": [{"name": "nobody"}]}, (NO_CLUSTER,), ((CLUSTER, Operation.DESCRIBE),)
    ),
    "AlterUserScramCredentials": Case(
        51,
        0,
        lambda n: {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        (NO_CLUSTER,),
        ((CLUSTER, Operation.ALTER),),
    ),
    "DescribeCluster": Case(60, 0, lambda n: {"include_cluster_authorized_operations": True}, (), ()),
    "DescribeProducers": Case(
        61,
        0,
        lambda n: {"topics": [{"name": n.topic, "partition_indexes": [0]}]},
        (NO_TOPIC,),
        ((TOPIC, Operation.READ),),
    ),
    "DescribeTransactions": Case(
        65, 0, lambda n: {"transactional_ids": [n.txn]}, (NO_TXN,), ((TXN, Operation.DESCRIBE),)
    ),
    "ListTransactions": Case(
        66,
        0,
        lambda n: {"state_filters": [], "producer_id_filters": []},
        (),
        ((TXN, Operation.DESCRIBE),),
        after="InitProducerId with a transactional id",
        hidden="transaction_states",
    ),
    "ConsumerGroupHeartbeat": Case(
        68,
        1,
        lambda n: {
            "group_id": n.group,
            "member_id": "m",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [n.topic],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        },
        (NO_GROUP,),
        ((GROUP, Operation.READ), (TOPIC, Operation.DESCRIBE)),
    ),
    "ConsumerGroupDescribe": Case(
        69,
        0,
        lambda n: {"group_ids": [n.group], "include_authorized_operations": False},
        (NO_GROUP,),
        ((GROUP, Operation.DESCRIBE),),
    ),
    "ListConfigResources": Case(
        74, 1, lambda n: {"resource_types": [2]}, (NO_CLUSTER,), ((CLUSTER, Operation.DESCRIBE_CONFIGS),)
    ),
    "DescribeTopicPartitions": Case(
        75,
        0,
        lambda n: {"topics": [{"name": n.topic}], "response_partition_limit": 100, "cursor": None},
        (NO_TOPIC,),
        ((TOPIC, Operation.DESCRIBE),),
    ),
}
