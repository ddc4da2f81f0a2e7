"""The ACLs that concern some resources only, narrowed to them.

A pattern such as `*` covers more than the chosen resources. It becomes one ACL per chosen resource. So the ACLs say the
same about these, and nothing about others.
"""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.core.security.acls import Acl, AclFilter, PatternType, ResourceType


def narrowed(acls: Iterable[Acl], resources: Iterable[tuple[ResourceType, str]]) -> tuple[list[Acl], int]:
    """Return the ACLs for the resources, sorted, and the number of ACLs that concern none of them."""
    filters = [AclFilter(kind, PatternType.MATCH, name) for kind, name in resources]
    found: set[Acl] = set()
    left = 0
    for acl in acls:
        covered = [
            acl._replace(pattern_type=PatternType.LITERAL, name=each.name)
            for each in filters
            if each.name is not None and each.matches(acl)
        ]
        found.update(covered)
        left += not covered
    return sorted(found), left
