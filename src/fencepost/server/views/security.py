"""Users, ACLs and quotas: pages of what the caller may see."""

from __future__ import annotations

from fencepost.core.rows import AclRow, CredentialRow, QuotaEntityRow, QuotaRow, UserRow
from fencepost.core.security.acls import Operation, PatternType, Permission, ResourceType
from fencepost.core.security.credentials import Mechanism
from fencepost.errors import ErrorCode
from fencepost.server.net.turns import paced
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import Page, PagePlace, cut
from fencepost.wire.apis import Key


async def list_users(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[UserRow]:
    """Return the users whose names contain `find`, in capitals or not."""
    answer = await caller.ask(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[])
    wanted = find.lower()
    there = [
        row
        async for row in paced(answer["results"])
        if row["error_code"] == ErrorCode.NONE and wanted in row["user"].lower()
    ]
    rows, cursor = await cut(there, lambda row: (row["user"],), place)
    users = [
        UserRow(
            row["user"],
            [
                CredentialRow(Mechanism(each["mechanism"]).sasl_name, each["iterations"])
                for each in row["credential_infos"]
            ],
        )
        for row in rows
    ]
    return Page(users, cursor)


async def list_acls(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[AclRow]:
    """Return the ACLs whose principal or resource contains `find`, in capitals or not."""
    answer = await caller.ask(
        Key.DESCRIBE_ACLS,
        resource_type_filter=ResourceType.ANY,
        pattern_type_filter=PatternType.ANY,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    found = []
    wanted = find.lower()
    async for resource in paced(answer["resources"]):
        for acl in resource["acls"]:
            if wanted not in acl["principal"].lower() and wanted not in resource["resource_name"].lower():
                continue
            found.append(
                AclRow(
                    ResourceType(resource["resource_type"]).name,
                    resource["resource_name"],
                    PatternType(resource["pattern_type"]).name,
                    acl["principal"],
                    acl["host"],
                    Operation(acl["operation"]).name,
                    Permission(acl["permission_type"]).name,
                )
            )
    return Page(*await cut(found, _acl_key, place))


def _acl_key(acl: AclRow) -> tuple[str, ...]:
    return acl.resource_type, acl.name, acl.pattern, acl.principal, acl.host, acl.operation, acl.permission


async def list_quotas(caller: HttpCaller, place: PagePlace) -> Page[QuotaRow]:
    answer = await caller.ask(Key.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    found = []
    async for row in paced(answer["entries"]):
        entity = [QuotaEntityRow(part["entity_type"], part["entity_name"]) for part in row["entity"]]
        found += [QuotaRow(entity, value["key"], value["value"]) for value in row["values"]]
    return Page(*await cut(found, _quota_key, place))


def _quota_key(quota: QuotaRow) -> tuple[str, ...]:
    named = [part for each in quota.entity for part in (each.type, "default" if each.name is None else f"={each.name}")]
    return *named, quota.quota
