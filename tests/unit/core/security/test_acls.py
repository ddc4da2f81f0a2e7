"""ACL rules by example; `tests/model/test_acls_model.py` tries them against a model."""

from __future__ import annotations

import pytest

from fencepost.core.security.access import NEEDS
from fencepost.core.security.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclFilter,
    AclTable,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    as_bits,
)

pytestmark = pytest.mark.unit

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
HOST = "10.0.0.1"


def acl(
    name: str,
    operation: Operation,
    permission: Permission = ALLOW,
    *,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
) -> Acl:
    return Acl(TOPIC, pattern, name, principal, host, operation, permission)


def may(table: AclTable, operation: Operation, name: str, who: str = "User:alice") -> bool:
    return table.allows(who, HOST, operation, TOPIC, name)


def test_nothing_is_allowed_without_an_acl() -> None:
    assert not may(AclTable(), Operation.READ, "t")


def test_a_denial_beats_a_permission() -> None:
    table = AclTable([acl("*", Operation.ALL), acl("secret-", Operation.READ, DENY, pattern=PREFIXED)])
    assert may(table, Operation.READ, "t")
    assert not may(table, Operation.READ, "secret-t")
    assert may(table, Operation.DESCRIBE, "secret-t"), "a denial of READ does not imply one of DESCRIBE"


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_some_permissions_imply_describe(operation: Operation) -> None:
    assert may(AclTable([acl("t", operation)]), Operation.DESCRIBE, "t")
    assert not may(AclTable([acl("t", operation)]), Operation.DESCRIBE_CONFIGS, "t")


def test_alter_configs_implies_describe_configs() -> None:
    assert may(AclTable([acl("t", Operation.ALTER_CONFIGS)]), Operation.DESCRIBE_CONFIGS, "t")


def test_hosts_and_principals_are_compared_whole() -> None:
    table = AclTable([acl("t", Operation.READ, host=HOST), acl("all", Operation.READ, principal="User:*")])
    assert may(table, Operation.READ, "t")
    assert not table.allows("User:alice", "10.0.0.10", Operation.READ, TOPIC, "t")
    assert not may(table, Operation.READ, "t", "User:alice2")
    assert may(table, Operation.READ, "all", "User:bob")


def test_super_users_may_do_what_is_denied() -> None:
    table = AclTable([acl("*", Operation.ALL, DENY, principal="User:*")], super_users=["User:root"])
    assert may(table, Operation.READ, "t", "User:root")
    assert table.allows_some("User:root", HOST, Operation.WRITE, TOPIC)


def test_everyone_may_use_a_resource_without_acls_only_if_configured() -> None:
    table = AclTable([acl("kept", Operation.READ)], allow_everyone_if_no_acl=True)
    assert may(table, Operation.READ, "free", "User:bob")
    assert not may(table, Operation.READ, "kept", "User:bob")


def test_a_prefix_that_is_removed_no_longer_counts() -> None:
    one, two = acl("a", Operation.READ, pattern=PREFIXED), acl("b", Operation.READ, pattern=PREFIXED)
    table = AclTable([one, two])
    assert table.remove(one)
    assert not table.remove(one)
    assert not may(table, Operation.READ, "abc")
    assert may(table, Operation.READ, "bcd")


def test_some_topic_may_be_written_unless_a_denial_covers_every_permission() -> None:
    wide = acl("ab", Operation.WRITE, pattern=PREFIXED)
    assert AclTable([wide]).allows_some("User:alice", HOST, Operation.WRITE, TOPIC)
    assert not AclTable([wide, acl("a", Operation.WRITE, DENY, pattern=PREFIXED)]).allows_some(
        "User:alice", HOST, Operation.WRITE, TOPIC
    )
    assert AclTable([wide, acl("abc", Operation.WRITE, DENY, pattern=PREFIXED)]).allows_some(
        "User:alice", HOST, Operation.WRITE, TOPIC
    )
    assert not AclTable([acl("t", Operation.WRITE), acl("t", Operation.ALL, DENY)]).allows_some(
        "User:alice", HOST, Operation.WRITE, TOPIC
    )


def test_a_filter_by_match_finds_the_acls_that_cover_a_name() -> None:
    rows = [
        acl("abc", Operation.READ),
        acl("*", Operation.READ),
        acl("ab", Operation.READ, pattern=PREFIXED),
        acl("b", Operation.READ, pattern=PREFIXED),
    ]
    assert [each for each in rows if AclFilter(TOPIC, PatternType.MATCH, "abc").matches(each)] == rows[:3]
    assert [each for each in rows if AclFilter(TOPIC, PatternType.ANY, "abc").matches(each)] == rows[:1]
    assert [each for each in rows if AclFilter(TOPIC, PREFIXED).matches(each)] == rows[2:]
    assert [each for each in rows if AclFilter(principal="User:bob").matches(each)] == []


def test_operations_are_reported_as_bits() -> None:
    table = AclTable([acl("t", Operation.READ)])
    found = table.operations("User:alice", HOST, TOPIC, "t")
    assert found == [Operation.READ, Operation.DESCRIBE]
    assert as_bits(found) == 1 << 3 | 1 << 8


def test_every_permission_of_an_api_is_one_of_its_resource() -> None:
    for needs in NEEDS.values():
        for need in needs:
            assert need.operation in OPERATIONS[need.resource_type]
            assert need.refusal.name == f"{need.resource_type.name}_AUTHORIZATION_FAILED"
    assert CLUSTER_NAME == "kafka-cluster"
