"""ACLs with the semantics of Kafka's StandardAuthorizer.

An ACL allows or denies a principal, from a host, an operation on the resources that a pattern covers. A denial beats
any permission; without either the answer is no. Super users may do everything. The numbers of the enumerations are
those of Kafka's wire format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

ANYTHING: Final = "*"
"""A resource name that covers all resources of its type, and a host that covers all hosts."""
EVERYONE: Final = "User:*"
"""The principal that stands for all principals."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of type CLUSTER."""


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In a filter: all patterns that cover the name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
}
"""The operations that exist for each type of resource, as reported to clients."""

_IMPLYING: Final = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Operations whose permission implies the permission of another; a denial implies nothing."""


_AUDIT_OPERATIONS: Final = frozenset(
    {Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}
)
"""The operations that super users may perform on the audit topic."""


class Acl(NamedTuple):
    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    """`Type:name`."""
    host: str
    operation: Operation
    permission: Permission

    def concerns(self, principal: str, host: str, operation: Operation) -> bool:
        """Tell if this entry says something about the operation; the resource is the caller's to compare."""
        if self.principal not in (principal, EVERYONE) or self.host not in (host, ANYTHING):
            return False
        if self.operation in (operation, Operation.ALL):
            return True
        return self.permission is Permission.ALLOW and self.operation in _IMPLYING.get(operation, ())


class AclFilter(NamedTuple):
    """A filter over ACLs. None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, ANYTHING)


class _Patterns:
    """The ACLs of one type of resource, by pattern."""

    __slots__ = ("_lengths", "literal", "prefixed")

    def __init__(self) -> None:
        self.literal: dict[str, dict[Acl, None]] = {}
        self.prefixed: dict[str, dict[Acl, None]] = {}
        self._lengths: dict[int, int] = {}
        """How many prefixes have each length: a lookup tries every length once."""

    def add(self, acl: Acl) -> None:
        if acl.pattern_type is PatternType.LITERAL:
            self.literal.setdefault(acl.name, {})[acl] = None
            return
        if acl.name not in self.prefixed:
            self.prefixed[acl.name] = {}
            self._lengths[len(acl.name)] = self._lengths.get(len(acl.name), 0) + 1
        self.prefixed[acl.name][acl] = None

    def remove(self, acl: Acl) -> None:
        rows = self.literal if acl.pattern_type is PatternType.LITERAL else self.prefixed
        del rows[acl.name][acl]
        if not rows[acl.name]:
            del rows[acl.name]
            if rows is self.prefixed:
                self._lengths[len(acl.name)] -= 1
                if not self._lengths[len(acl.name)]:
                    del self._lengths[len(acl.name)]

    def covering(self, name: str) -> Iterator[Acl]:
        """Yield the ACLs whose pattern covers the name."""
        yield from self.literal.get(name, ())
        if name != ANYTHING:
            yield from self.literal.get(ANYTHING, ())
        for length in self._lengths:
            if length <= len(name):
                yield from self.prefixed.get(name[:length], ())

    def __iter__(self) -> Iterator[Acl]:
        for rows in (self.literal, self.prefixed):
            for acls in rows.values():
                yield from acls


class AclTable:
    """All ACLs, and the decisions that follow from them."""

    def __init__(
        self,
        acls: Iterable[Acl] = (),
        *,
        super_users: Iterable[str] = (),
        allow_everyone_if_no_acl: bool = False,
        audit_topic: str | None = None,
    ) -> None:
        self.super_users = frozenset(super_users)
        self._audit_topic = audit_topic
        """Only super users may read it, whatever the ACLs say, and nobody may write to it or delete it."""
        self._allow_everyone = allow_everyone_if_no_acl
        self._acls: dict[Acl, None] = {}
        self._types: dict[ResourceType, _Patterns] = {}
        self.version = 0
        """Grows with every change, so that callers can keep decisions until the next one."""
        for acl in acls:
            self.add(acl)

    def __len__(self) -> int:
        return len(self._acls)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._acls)

    def __contains__(self, acl: object) -> bool:
        return acl in self._acls

    def add(self, acl: Acl) -> bool:
        """Add the ACL; return False if it is there already."""
        if acl in self._acls:
            return False
        self._acls[acl] = None
        self._types.setdefault(acl.resource_type, _Patterns()).add(acl)
        self.version += 1
        return True

    def remove(self, acl: Acl) -> bool:
        """Remove the ACL; return False if it is not there."""
        if acl not in self._acls:
            return False
        del self._acls[acl]
        self._types[acl.resource_type].remove(acl)
        self.version += 1
        return True

    def allows(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Tell if the principal may perform the operation on this resource from this host."""
        if resource_type is ResourceType.TOPIC and name == self._audit_topic:
            return principal in self.super_users and operation in _AUDIT_OPERATIONS
        if principal in self.super_users:
            return True
        patterns = self._types.get(resource_type)
        has_acls = False
        allowed = False
        for acl in patterns.covering(name) if patterns is not None else ():
            has_acls = True
            if acl.concerns(principal, host, operation):
                if acl.permission is Permission.DENY:
                    return False
                allowed = True
        return allowed or (self._allow_everyone and not has_acls)

    def allows_some(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Tell if there may be a resource of this type on which the principal may perform the operation: some pattern
        allows it, and no denial covers the whole of that pattern."""
        if principal in self.super_users:
            return True
        if self.allows(principal, host, operation, resource_type, _SOME_NAME):
            return True
        allowed: list[Acl] = []
        denied: set[tuple[PatternType, str]] = set()
        for acl in self._types.get(resource_type, ()):
            # As in Kafka, implied operations do not count here.
            if acl.operation not in (operation, Operation.ALL) or not acl.concerns(principal, host, operation):
                continue
            if acl.permission is Permission.ALLOW:
                allowed.append(acl)
            else:
                denied.add((acl.pattern_type, acl.name))
        if (PatternType.LITERAL, ANYTHING) in denied:
            return False
        return any(not _is_dominated(acl, denied) for acl in allowed)

    def operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> list[Operation]:
        """Return the operations that the principal may perform on this resource."""
        return [
            operation
            for operation in OPERATIONS[resource_type]
            if self.allows(principal, host, operation, resource_type, name)
        ]


_SOME_NAME: Final = "hardcode"
"""The name that Kafka tries for a permission on any resource, so that super users and defaults count."""


def _is_dominated(acl: Acl, denied: set[tuple[PatternType, str]]) -> bool:
    """Tell if a denial covers everything that the pattern of `acl` covers."""
    if acl.pattern_type is PatternType.LITERAL:
        if acl.name == ANYTHING:
            return False
        if (PatternType.LITERAL, acl.name) in denied:
            return True
    return any((PatternType.PREFIXED, acl.name[:length]) in denied for length in range(1, len(acl.name) + 1))


def as_bits(operations: Iterable[Operation]) -> int:
    """Return the operations as Kafka's bit field: one bit per operation's number."""
    return sum(1 << operation for operation in operations)


def narrowed(acls: Iterable[Acl], resources: Iterable[tuple[ResourceType, str]]) -> tuple[list[Acl], int]:
    """Return the ACLs for these resources, sorted, and the number of ACLs that concern none of them. One whose pattern
    covers more, such as `*`, becomes one ACL per resource, which says the same about it and nothing about others."""
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
