"""The APIs of the protocol: key, Kafka's name, the supported versions, and the first flexible version.

This is a table, not derived from kio's modules: the header of every request depends on it, so it must be available
before any message class is loaded, and the supported versions must not change with a dependency. A test compares it
with kio.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

NEVER: Final = 1 << 15
"""The first flexible version of an API without one."""


CONSUMER: Final = -1
DEBUGGER: Final = -2
"""Replica ids of clients. In ListOffsets a consumer gets the high watermark as the end, a debugger the log's end."""

FETCH_BY_ID: Final = 13
FETCH_BY_NAME: Final = 12
OFFSET_COMMIT_BY_NAME: Final = 9
OFFSET_FETCH_BY_NAME: Final = 9
"""The newest versions that name topics; later ones know only their ids, which deleted topics no longer have."""


class Key(IntEnum):
    """The API keys that the code uses by name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    DESCRIBE_TOPIC_PARTITIONS = 75
    OWN = 10_000
    """fencepost's own keys start here, far above Kafka's."""
    DESCRIBE_OWNERS = 10_001


class ApiInfo(NamedTuple):
    name: str
    lowest: int
    highest: int
    first_flexible: int


APIS: Final[dict[int, ApiInfo]] = {
    0: ApiInfo("Produce", 3, 13, 9),
    1: ApiInfo("Fetch", 4, 18, 12),
    2: ApiInfo("ListOffsets", 1, 11, 6),
    3: ApiInfo("Metadata", 0, 13, 9),
    8: ApiInfo("OffsetCommit", 2, 10, 8),
    9: ApiInfo("OffsetFetch", 1, 10, 6),
    10: ApiInfo("FindCoordinator", 0, 6, 3),
    11: ApiInfo("JoinGroup", 0, 9, 6),
    12: ApiInfo("Heartbeat", 0, 4, 4),
    13: ApiInfo("LeaveGroup", 0, 5, 4),
    14: ApiInfo("SyncGroup", 0, 5, 4),
    15: ApiInfo("DescribeGroups", 0, 6, 5),
    16: ApiInfo("ListGroups", 0, 5, 3),
    17: ApiInfo("SaslHandshake", 0, 1, NEVER),
    18: ApiInfo("ApiVersions", 0, 4, 3),
    19: ApiInfo("CreateTopics", 2, 7, 5),
    20: ApiInfo("DeleteTopics", 1, 6, 4),
    21: ApiInfo("DeleteRecords", 0, 2, 2),
    22: ApiInfo("InitProducerId", 0, 6, 2),
    23: ApiInfo("OffsetForLeaderEpoch", 2, 4, 4),
    24: ApiInfo("AddPartitionsToTxn", 0, 5, 3),
    25: ApiInfo("AddOffsetsToTxn", 0, 4, 3),
    26: ApiInfo("EndTxn", 0, 5, 3),
    27: ApiInfo("WriteTxnMarkers", 1, 2, 1),
    28: ApiInfo("TxnOffsetCommit", 0, 5, 3),
    29: ApiInfo("DescribeAcls", 1, 3, 2),
    30: ApiInfo("CreateAcls", 1, 3, 2),
    31: ApiInfo("DeleteAcls", 1, 3, 2),
    32: ApiInfo("DescribeConfigs", 1, 4, 4),
    33: ApiInfo("AlterConfigs", 0, 2, 2),
    34: ApiInfo("AlterReplicaLogDirs", 1, 2, 2),
    35: ApiInfo("DescribeLogDirs", 1, 5, 2),
    36: ApiInfo("SaslAuthenticate", 0, 2, 2),
    37: ApiInfo("CreatePartitions", 0, 3, 2),
    38: ApiInfo("CreateDelegationToken", 1, 3, 2),
    39: ApiInfo("RenewDelegationToken", 1, 2, 2),
    40: ApiInfo("ExpireDelegationToken", 1, 2, 2),
    41: ApiInfo("DescribeDelegationToken", 1, 3, 2),
    42: ApiInfo("DeleteGroups", 0, 2, 2),
    43: ApiInfo("ElectLeaders", 0, 2, 2),
    44: ApiInfo("IncrementalAlterConfigs", 0, 1, 1),
    45: ApiInfo("AlterPartitionReassignments", 0, 1, 0),
    46: ApiInfo("ListPartitionReassignments", 0, 0, 0),
    47: ApiInfo("OffsetDelete", 0, 0, NEVER),
    48: ApiInfo("DescribeClientQuotas", 0, 1, 1),
    49: ApiInfo("AlterClientQuotas", 0, 1, 1),
    50: ApiInfo("DescribeUserScramCredentials", 0, 0, 0),
    51: ApiInfo("AlterUserScramCredentials", 0, 0, 0),
    52: ApiInfo("Vote", 0, 2, 0),
    53: ApiInfo("BeginQuorumEpoch", 0, 1, 1),
    54: ApiInfo("EndQuorumEpoch", 0, 1, 1),
    55: ApiInfo("DescribeQuorum", 0, 2, 0),
    56: ApiInfo("AlterPartition", 2, 3, 2),
    57: ApiInfo("UpdateFeatures", 0, 2, 0),
    58: ApiInfo("Envelope", 0, 0, 0),
    59: ApiInfo("FetchSnapshot", 0, 1, 0),
    60: ApiInfo("DescribeCluster", 0, 2, 0),
    61: ApiInfo("DescribeProducers", 0, 0, 0),
    62: ApiInfo("BrokerRegistration", 0, 4, 0),
    63: ApiInfo("BrokerHeartbeat", 0, 2, 0),
    64: ApiInfo("UnregisterBroker", 0, 0, 0),
    65: ApiInfo("DescribeTransactions", 0, 0, 0),
    66: ApiInfo("ListTransactions", 0, 2, 0),
    67: ApiInfo("AllocateProducerIds", 0, 0, 0),
    68: ApiInfo("ConsumerGroupHeartbeat", 0, 1, 0),
    69: ApiInfo("ConsumerGroupDescribe", 0, 1, 0),
    70: ApiInfo("ControllerRegistration", 0, 0, 0),
    71: ApiInfo("GetTelemetrySubscriptions", 0, 0, 0),
    72: ApiInfo("PushTelemetry", 0, 0, 0),
    73: ApiInfo("AssignReplicasToDirs", 0, 0, 0),
    74: ApiInfo("ListConfigResources", 0, 1, 0),
    75: ApiInfo("DescribeTopicPartitions", 0, 0, 0),
    76: ApiInfo("ShareGroupHeartbeat", 1, 1, 1),
    77: ApiInfo("ShareGroupDescribe", 1, 1, 1),
    78: ApiInfo("ShareFetch", 1, 2, 1),
    79: ApiInfo("ShareAcknowledge", 1, 2, 1),
    80: ApiInfo("AddRaftVoter", 0, 1, 0),
    81: ApiInfo("RemoveRaftVoter", 0, 0, 0),
    82: ApiInfo("UpdateRaftVoter", 0, 0, 0),
    83: ApiInfo("InitializeShareGroupState", 0, 0, 0),
    84: ApiInfo("ReadShareGroupState", 0, 0, 0),
    85: ApiInfo("WriteShareGroupState", 0, 1, 0),
    86: ApiInfo("DeleteShareGroupState", 0, 0, 0),
    87: ApiInfo("ReadShareGroupStateSummary", 0, 1, 0),
    88: ApiInfo("StreamsGroupHeartbeat", 0, 0, 0),
    89: ApiInfo("StreamsGroupDescribe", 0, 0, 0),
    90: ApiInfo("DescribeShareGroupOffsets", 0, 1, 0),
    91: ApiInfo("AlterShareGroupOffsets", 0, 0, 0),
    92: ApiInfo("DeleteShareGroupOffsets", 0, 0, 0),
    Key.OWN: ApiInfo("Own", 0, 1, 0),
    Key.DESCRIBE_OWNERS: ApiInfo("DescribeOwners", 0, 1, 0),
}

API_NAMES: Final[dict[int, str]] = {key: api.name for key, api in APIS.items()}


def versions(key: int) -> tuple[int, int]:
    """Return the lowest and the highest supported version; raise KeyError for an unknown API."""
    api = APIS[key]
    return api.lowest, api.highest


def is_flexible(key: int, version: int) -> bool:
    """Return whether this version has compact lengths and tagged fields; raise KeyError for an unknown API.

    This works for unsupported versions too, because the header of such a request must still be read.
    """
    return version >= APIS[key].first_flexible
