"""The permissions that each API checks, by API key.

`server.net.router.ApiRequest.may` refuses to check a permission that is not listed here, and a test compares the keys
with the registry: an API without an entry cannot be added by oversight. An empty entry means that everyone who is
authenticated may use the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fencepost.core.security.acls import Operation, ResourceType
from fencepost.errors import ErrorCode


class Need(NamedTuple):
    """One permission that an API checks."""

    resource_type: ResourceType
    operation: Operation

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource_type.name}"

    @property
    def refusal(self) -> ErrorCode:
        """The code for a client that does not have the permission."""
        return _REFUSALS[self.resource_type]


TOPIC_READ: Final = Need(ResourceType.TOPIC, Operation.READ)
TOPIC_WRITE: Final = Need(ResourceType.TOPIC, Operation.WRITE)
TOPIC_DESCRIBE: Final = Need(ResourceType.TOPIC, Operation.DESCRIBE)
TOPIC_CREATE: Final = Need(ResourceType.TOPIC, Operation.CREATE)
TOPIC_DELETE: Final = Need(ResourceType.TOPIC, Operation.DELETE)
TOPIC_ALTER: Final = Need(ResourceType.TOPIC, Operation.ALTER)
TOPIC_DESCRIBE_CONFIGS: Final = Need(ResourceType.TOPIC, Operation.DESCRIBE_CONFIGS)
TOPIC_ALTER_CONFIGS: Final = Need(ResourceType.TOPIC, Operation.ALTER_CONFIGS)
GROUP_READ: Final = Need(ResourceType.GROUP, Operation.READ)
GROUP_DESCRIBE: Final = Need(ResourceType.GROUP, Operation.DESCRIBE)
GROUP_DELETE: Final = Need(ResourceType.GROUP, Operation.DELETE)
GROUP_DESCRIBE_CONFIGS: Final = Need(ResourceType.GROUP, Operation.DESCRIBE_CONFIGS)
GROUP_ALTER_CONFIGS: Final = Need(ResourceType.GROUP, Operation.ALTER_CONFIGS)
CLUSTER_CREATE: Final = Need(ResourceType.CLUSTER, Operation.CREATE)
CLUSTER_DESCRIBE: Final = Need(ResourceType.CLUSTER, Operation.DESCRIBE)
CLUSTER_ALTER: Final = Need(ResourceType.CLUSTER, Operation.ALTER)
CLUSTER_ACTION: Final = Need(ResourceType.CLUSTER, Operation.CLUSTER_ACTION)
CLUSTER_IDEMPOTENT_WRITE: Final = Need(ResourceType.CLUSTER, Operation.IDEMPOTENT_WRITE)
CLUSTER_DESCRIBE_CONFIGS: Final = Need(ResourceType.CLUSTER, Operation.DESCRIBE_CONFIGS)
CLUSTER_ALTER_CONFIGS: Final = Need(ResourceType.CLUSTER, Operation.ALTER_CONFIGS)
TRANSACTIONAL_ID_WRITE: Final = Need(ResourceType.TRANSACTIONAL_ID, Operation.WRITE)
TRANSACTIONAL_ID_DESCRIBE: Final = Need(ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE)

_REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

NEEDS: Final[Mapping[int, tuple[Need, ...]]] = {
    0: (TRANSACTIONAL_ID_WRITE, TOPIC_WRITE),  # Produce
    1: (TOPIC_READ,),  # Fetch
    2: (TOPIC_DESCRIBE,),  # ListOffsets
    3: (TOPIC_DESCRIBE, CLUSTER_CREATE, TOPIC_CREATE, CLUSTER_DESCRIBE),  # Metadata
    8: (GROUP_READ, TOPIC_READ),  # OffsetCommit
    9: (GROUP_DESCRIBE, TOPIC_DESCRIBE),  # OffsetFetch
    10: (GROUP_DESCRIBE, TRANSACTIONAL_ID_DESCRIBE),  # FindCoordinator
    11: (GROUP_READ,),  # JoinGroup
    12: (GROUP_READ,),  # Heartbeat
    13: (GROUP_READ,),  # LeaveGroup
    14: (GROUP_READ,),  # SyncGroup
    15: (GROUP_DESCRIBE,),  # DescribeGroups
    16: (CLUSTER_DESCRIBE, GROUP_DESCRIBE),  # ListGroups
    17: (),  # SaslHandshake
    18: (),  # ApiVersions
    19: (CLUSTER_CREATE, TOPIC_CREATE, TOPIC_DESCRIBE_CONFIGS),  # CreateTopics
    20: (TOPIC_DELETE, TOPIC_DESCRIBE),  # DeleteTopics
    21: (TOPIC_DELETE,),  # DeleteRecords
    22: (TRANSACTIONAL_ID_WRITE, CLUSTER_IDEMPOTENT_WRITE, TOPIC_WRITE),  # InitProducerId
    23: (TOPIC_DESCRIBE,),  # OffsetForLeaderEpoch
    24: (TRANSACTIONAL_ID_WRITE, TOPIC_WRITE),  # AddPartitionsToTxn
    25: (TRANSACTIONAL_ID_WRITE, GROUP_READ),  # AddOffsetsToTxn
    26: (TRANSACTIONAL_ID_WRITE,),  # EndTxn
    27: (CLUSTER_ALTER, CLUSTER_ACTION),  # WriteTxnMarkers
    28: (TRANSACTIONAL_ID_WRITE, GROUP_READ, TOPIC_READ),  # TxnOffsetCommit
    29: (CLUSTER_DESCRIBE,),  # DescribeAcls
    30: (CLUSTER_ALTER,),  # CreateAcls
    31: (CLUSTER_ALTER,),  # DeleteAcls
    32: (TOPIC_DESCRIBE_CONFIGS, CLUSTER_DESCRIBE_CONFIGS, GROUP_DESCRIBE_CONFIGS),  # DescribeConfigs
    33: (TOPIC_ALTER_CONFIGS, CLUSTER_ALTER_CONFIGS, GROUP_ALTER_CONFIGS),  # AlterConfigs
    34: (CLUSTER_ALTER,),  # AlterReplicaLogDirs
    35: (CLUSTER_DESCRIBE,),  # DescribeLogDirs
    36: (),  # SaslAuthenticate
    37: (TOPIC_ALTER,),  # CreatePartitions
    42: (GROUP_DELETE,),  # DeleteGroups
    43: (CLUSTER_ALTER,),  # ElectLeaders
    44: (TOPIC_ALTER_CONFIGS, CLUSTER_ALTER_CONFIGS, GROUP_ALTER_CONFIGS),  # IncrementalAlterConfigs
    45: (CLUSTER_ALTER,),  # AlterPartitionReassignments
    46: (CLUSTER_DESCRIBE,),  # ListPartitionReassignments
    47: (GROUP_DELETE, TOPIC_READ),  # OffsetDelete
    48: (CLUSTER_DESCRIBE_CONFIGS,),  # DescribeClientQuotas
    49: (CLUSTER_ALTER_CONFIGS,),  # AlterClientQuotas
    50: (CLUSTER_DESCRIBE,),  # DescribeUserScramCredentials
    51: (CLUSTER_ALTER,),  # AlterUserScramCredentials
    55: (CLUSTER_DESCRIBE,),  # DescribeQuorum
    57: (CLUSTER_ALTER,),  # UpdateFeatures
    60: (CLUSTER_DESCRIBE,),  # DescribeCluster: for the authorized operations only
    61: (TOPIC_READ,),  # DescribeProducers
    65: (TRANSACTIONAL_ID_DESCRIBE, TOPIC_DESCRIBE),  # DescribeTransactions
    66: (TRANSACTIONAL_ID_DESCRIBE,),  # ListTransactions
    68: (GROUP_READ, TOPIC_DESCRIBE),  # ConsumerGroupHeartbeat
    69: (GROUP_DESCRIBE, TOPIC_DESCRIBE),  # ConsumerGroupDescribe
    74: (CLUSTER_DESCRIBE_CONFIGS,),  # ListConfigResources
    75: (TOPIC_DESCRIBE,),  # DescribeTopicPartitions
    10_000: (GROUP_READ, TOPIC_WRITE, TOPIC_READ),  # Own
    10_001: (GROUP_DESCRIBE,),  # DescribeOwners
}
