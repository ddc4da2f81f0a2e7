"""The ACL table against a model that reads like Kafka's documentation: every ACL is compared with every question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.security.acls import Acl, AclTable, Operation, PatternType, Permission, ResourceType

pytestmark = pytest.mark.model

NAMES = st.text("ab*", min_size=1, max_size=3)
PRINCIPALS = st.sampled_from(["User:a", "User:b", "User:*"])
HOSTS = st.sampled_from(["1.1.1.1", "2.2.2.2", "*"])
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP])
OPERATIONS = st.sampled_from([each for each in Operation if each > Operation.ANY])
ACLS = st.builds(
    Acl,
    TYPES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    NAMES,
    PRINCIPALS,
    HOSTS,
    OPERATIONS,
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def covers(acl: Acl, kind: ResourceType, name: str) -> bool:
    if acl.resource_type is not kind:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def speaks_of(acl: Acl, who: str, host: str, operation: Operation) -> bool:
    if acl.principal not in (who, "User:*") or acl.host not in (host, "*"):
        return False
    implied = set()
    if acl.permission is Permission.ALLOW:
        if acl.operation.name in ("READ", "WRITE", "DELETE", "ALTER"):
            implied.add(Operation.DESCRIBE)
        if acl.operation is Operation.ALTER_CONFIGS:
            implied.add(Operation.DESCRIBE_CONFIGS)
    return acl.operation in (Operation.ALL, operation) or operation in implied


@given(
    st.lists(ACLS, max_size=12),
    st.lists(ACLS, max_size=4),
    st.sampled_from(["User:a", "User:b", "User:root"]),
    st.sampled_from(["1.1.1.1", "2.2.2.2"]),
    OPERATIONS.filter(lambda each: each is not Operation.ALL),
    TYPES,
    NAMES,
    st.booleans(),
)
def test_the_table_decides_as_the_model(
    acls: list[Acl],
    removed: list[Acl],
    who: str,
    host: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    open_by_default: bool,
) -> None:
    table = AclTable([*acls, *removed], super_users=["User:root"], allow_everyone_if_no_acl=open_by_default)
    for acl in removed:
        table.remove(acl)
    kept = set(acls) - set(removed)
    assert set(table) == kept
    on_it = [acl for acl in kept if covers(acl, kind, name)]
    said = {acl.permission for acl in on_it if speaks_of(acl, who, host, operation)}
    expected = who == "User:root" or said == {Permission.ALLOW} or (open_by_default and not on_it)
    assert table.allows(who, host, operation, kind, name) is expected


@given(st.lists(ACLS, max_size=8), st.sampled_from(["User:a", "User:b"]), NAMES)
def test_who_may_write_a_topic_may_write_some_topic(acls: list[Acl], who: str, name: str) -> None:
    table = AclTable(acls)
    if table.allows(who, "1.1.1.1", Operation.WRITE, ResourceType.TOPIC, name):
        assert table.allows_some(who, "1.1.1.1", Operation.WRITE, ResourceType.TOPIC)
