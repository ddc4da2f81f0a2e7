"""ACLs narrowed to some resources: they say the same about these, and nothing about others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.security.acls import Acl, AclTable, Operation, PatternType, Permission, ResourceType, narrowed

pytestmark = pytest.mark.unit

NAMES = ("orders", "orders-eu", "other")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
USERS = ("User:alice", "User:bob")
OPERATIONS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE)

acls = st.builds(
    Acl,
    st.sampled_from([*KINDS, ResourceType.TRANSACTIONAL_ID]),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([*NAMES, "o", "ord", "*"]),
    st.sampled_from([*USERS, "User:*"]),
    st.just("*"),
    st.sampled_from([*OPERATIONS, Operation.ALL]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
resources = st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES))


@given(st.lists(acls, max_size=12), st.sets(resources))
def test_the_chosen_resources_keep_their_permissions_and_others_get_none(
    given_acls: list[Acl], chosen: set[tuple[ResourceType, str]]
) -> None:
    found, left = narrowed(given_acls, chosen)
    whole, narrow = AclTable(given_acls), AclTable(found)
    for kind in KINDS:
        for name in NAMES:
            for user in USERS:
                for operation in OPERATIONS:
                    allowed = narrow.allows(user, "127.0.0.1", operation, kind, name)
                    if (kind, name) in chosen:
                        assert allowed == whole.allows(user, "127.0.0.1", operation, kind, name)
                    else:
                        assert not allowed
    assert {(acl.resource_type, acl.name) for acl in found} <= chosen
    assert left <= len(given_acls)


def test_what_concerns_none_of_them_is_counted() -> None:
    wide = Acl(ResourceType.TOPIC, PatternType.LITERAL, "*", "User:a", "*", Operation.READ, Permission.ALLOW)
    other = wide._replace(name="other")
    name = wide._replace(resource_type=ResourceType.TRANSACTIONAL_ID)
    assert narrowed([wide, other, name], [(ResourceType.TOPIC, "orders")]) == ([wide._replace(name="orders")], 2)
