"""The authorizer: the ACLs in the metadata store, and whether a principal may do something."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from fencepost.core.security.access import NEEDS, Need
from fencepost.core.security.acls import (
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
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.net.turns import paced
from fencepost.server.storage.store import Statement, Store

if TYPE_CHECKING:
    from fencepost.server.net.session import Session

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS acls (
        resource_type INTEGER NOT NULL, pattern_type INTEGER NOT NULL, name TEXT NOT NULL, principal TEXT NOT NULL,
        host TEXT NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
        PRIMARY KEY (resource_type, pattern_type, name, principal, host, operation, permission)
    ) WITHOUT ROWID""",
)
_SELECT: Final = "SELECT resource_type, pattern_type, name, principal, host, operation, permission FROM acls"
_INSERT: Final = (
    "INSERT OR IGNORE INTO acls (resource_type, pattern_type, name, principal, host, operation, permission) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_DELETE: Final = (
    "DELETE FROM acls WHERE resource_type = ? AND pattern_type = ? AND name = ? AND principal = ? AND host = ? "
    "AND operation = ? AND permission = ?"
)
MOST_ACLS: Final = 100_000
_MOST_DECISIONS: Final = 1000
"""Decisions that a session keeps."""
_NEEDS: Final = {key: frozenset(needs) for key, needs in NEEDS.items()}


class Authorizer:
    """The ACLs, in memory and in the store. Without `enabled` everyone may do everything."""

    def __init__(
        self,
        store: Store,
        *,
        enabled: bool,
        super_users: Iterable[str],
        allow_everyone_if_no_acl: bool,
        audit_topic: str | None = None,
    ) -> None:
        self._store = store
        self.enabled = enabled
        stored = (
            Acl(ResourceType(kind), PatternType(pattern), name, who, host, Operation(operation), Permission(allowed))
            for kind, pattern, name, who, host, operation, allowed in store.query(_SELECT)
        )
        self.table = AclTable(
            stored,
            super_users=super_users,
            allow_everyone_if_no_acl=allow_everyone_if_no_acl,
            audit_topic=audit_topic,
        )

    def allows(self, key: int, session: Session, need: Need, name: str) -> bool:
        """Tell if the session's principal has the permission that the API `key` asks for."""
        if not self.enabled:
            return True
        if need not in _NEEDS[key]:
            raise RuntimeError(f"API {key} checks {need}, which `core.security.access` does not list")
        return self.decide(session, need, name)

    def allows_some(self, key: int, session: Session, need: Need) -> bool:
        """Tell if the session's principal may have the permission on some resource."""
        if need not in _NEEDS[key]:
            raise RuntimeError(f"API {key} checks {need}, which `core.security.access` does not list")
        return not self.enabled or self.table.allows_some(
            str(session.principal), session.client_host, need.operation, need.resource_type
        )

    def may_describe(self, principal: str, host: str, topic: str) -> bool:
        """Tell if a principal may describe a topic; `host` may have Java's slash in front, as members of groups do."""
        return self.table.allows(principal, host.removeprefix("/"), Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def operations(self, session: Session, kind: ResourceType, name: str) -> int:
        """Return the operations that the session's principal may perform on a resource, as a bit field."""
        if not self.enabled:
            return as_bits(OPERATIONS[kind])
        return as_bits(each for each in OPERATIONS[kind] if self.decide(session, Need(kind, each), name))

    def decide(self, session: Session, need: Need, name: str) -> bool:
        """Return a decision, which the session keeps until an ACL changes."""
        table, decisions = self.table, session.decisions
        if session.decided_by != table.version or len(decisions) >= _MOST_DECISIONS:
            decisions.clear()
            session.decided_by = table.version
        known = decisions.get((need, name))
        if known is None:
            who, host = str(session.principal), session.client_host
            known = decisions[need, name] = table.allows(who, host, need.operation, need.resource_type, name)
        return known

    async def matching(self, wanted: AclFilter) -> list[Acl]:
        """Return the ACLs that match, of those that exist now."""
        return [acl async for acl in paced(list(self.table)) if wanted.matches(acl)]

    async def create(self, acls: Sequence[Acl]) -> list[Acl]:
        """Add ACLs: all of them, or none if the store fails. Return the new ones; one that exists already stays."""
        new = list(dict.fromkeys([acl async for acl in paced(acls) if acl not in self.table]))
        if not new:
            return []
        if len(self.table) + len(new) > MOST_ACLS:
            raise ServerError(ErrorCode.POLICY_VIOLATION, f"there can be at most {MOST_ACLS} ACLs")
        await self._store.execute([_row(_INSERT, acl) async for acl in paced(new)])
        return [acl async for acl in paced(new) if self.table.add(acl)]

    async def delete(self, acls: Iterable[Acl]) -> list[Acl]:
        """Remove ACLs: all of them, or none if the store fails. Return the removed ones. Denied operations are allowed
        only afterwards."""
        old = list(dict.fromkeys([acl async for acl in paced(acls) if acl in self.table]))
        if not old:
            return []
        await self._store.execute([_row(_DELETE, acl) async for acl in paced(old)], frees=True)
        return [acl async for acl in paced(old) if self.table.remove(acl)]


def _row(sql: str, acl: Acl) -> Statement:
    return sql, tuple(int(field) if not isinstance(field, str) else field for field in acl)
