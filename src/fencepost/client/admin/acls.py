"""ACLs for administrators, by DescribeAcls, CreateAcls and DeleteAcls, and the operations that a client may perform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.metadata import question
from fencepost.core.security.acls import (
    OPERATIONS,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from fencepost.errors import ErrorCode
from fencepost.wire.apis import Key

_NOBODY: Final = 2**62
"""The pid of a producer that cannot exist: the server checks the permission first, then rejects it."""
_DESCRIBE_VERSION: Final = 5
_ADD_VERSION: Final = 3
"""Later versions of AddPartitionsToTxn are for brokers."""


class AclAdmin(PartitionAdmin):
    """Administration of ACLs."""

    def acls(self, wanted: AclFilter = AclFilter()) -> list[Acl]:  # noqa: B008 - immutable
        """Return the ACLs that match the filter."""
        answer = self._routes.ask(Key.DESCRIBE_ACLS, _filter_fields(wanted)).message
        raise_for(answer.error_code, "describing ACLs", answer.error_message)
        return sorted(
            _acl(found.resource_type, found.pattern_type, found.resource_name, row)
            for found in answer.resources
            for row in found.acls
        )

    def create_acls(self, acls: Iterable[Acl]) -> None:
        """Add ACLs. One that exists already stays. Raise ServerError if one is refused; the others are added."""
        asked = list(acls)
        rows = [
            {
                "resource_type": int(acl.resource_type),
                "resource_name": acl.name,
                "resource_pattern_type": int(acl.pattern_type),
                "principal": acl.principal,
                "host": acl.host,
                "operation": int(acl.operation),
                "permission_type": int(acl.permission),
            }
            for acl in asked
        ]
        answer = self._routes.controller().request(Key.CREATE_ACLS, {"creations": rows}).message
        for acl, result in zip(asked, answer.results, strict=True):
            raise_for(result.error_code, f"creating the ACL {acl}", result.error_message)

    def delete_acls(self, wanted: AclFilter) -> list[Acl]:
        """Delete the ACLs that match the filter, and return them."""
        answer = self._routes.controller().request(Key.DELETE_ACLS, {"filters": [_filter_fields(wanted)]}).message
        [result] = answer.filter_results
        raise_for(result.error_code, "deleting ACLs", result.error_message)
        for row in result.matching_acls:
            raise_for(row.error_code, "deleting an ACL", row.error_message)
        return sorted(_acl(row.resource_type, row.pattern_type, row.resource_name, row) for row in result.matching_acls)

    def permitted(self, kind: ResourceType, name: str) -> frozenset[Operation]:
        """Return the operations that this client may perform on a resource. Changes nothing.

        None are known of a topic that does not exist: raise ServerError with UNKNOWN_TOPIC_OR_PARTITION."""
        if kind is ResourceType.TOPIC:
            return self._on_topic(name)
        if kind is ResourceType.GROUP:
            channel = self._routes.to(self._routes.coordinator(name))
            fields = {"groups": [name], "include_authorized_operations": True}
            # Up to this version a group that does not exist is described as dead, with its operations.
            [group] = channel.request(Key.DESCRIBE_GROUPS, fields, at_most=_DESCRIBE_VERSION).message.groups
            raise_for(group.error_code, f"group {name!r}")
            return _operations(kind, group.authorized_operations)
        if kind is ResourceType.CLUSTER:
            asked = {
                "include_cluster_authorized_operations": True,
                "endpoint_type": 1,
                "include_fenced_brokers": False,
            }
            answer = self._routes.ask(Key.DESCRIBE_CLUSTER, asked).message
            return _operations(kind, answer.cluster_authorized_operations)
        return self._on_transactional_id(name)

    def _on_topic(self, name: str) -> frozenset[Operation]:
        asked = {**question([name]), "include_topic_authorized_operations": True}
        [topic] = self._routes.ask(Key.METADATA, asked).message.topics
        raise_for(topic.error_code, f"topic {name!r}")
        return _operations(ResourceType.TOPIC, topic.topic_authorized_operations)

    def _on_transactional_id(self, name: str) -> frozenset[Operation]:
        """Find out by a request for which the server needs WRITE, because no answer lists the operations."""
        channel = self._routes.to(self._routes.transaction_coordinator(name))  # which needs DESCRIBE
        fields = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": _NOBODY,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "__none", "partitions": [0]}],
        }
        answer = channel.request(Key.ADD_PARTITIONS_TO_TXN, fields, at_most=_ADD_VERSION).message
        [topic] = answer.results_by_topic_v3_and_below
        refused = topic.results_by_partition[0].partition_error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return frozenset({Operation.DESCRIBE}) if refused else frozenset({Operation.DESCRIBE, Operation.WRITE})


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(wanted.resource_type),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": int(wanted.pattern_type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def _acl(kind: int, pattern: int, name: str, row: Any) -> Acl:
    return Acl(
        ResourceType(kind),
        PatternType(pattern),
        name,
        row.principal,
        row.host,
        Operation(row.operation),
        Permission(row.permission_type),
    )


def _operations(kind: ResourceType, bits: int) -> frozenset[Operation]:
    return frozenset(each for each in OPERATIONS[kind] if bits >= 0 and bits >> each & 1)
