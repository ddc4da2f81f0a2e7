"""`fencepost acl`: the permissions of principals, by CreateAcls, DescribeAcls and DeleteAcls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from fencepost.cli.options import ClusterTarget, client_command, confirm, yes_option
from fencepost.cli.output import Column
from fencepost.errors import ConfigError, FencepostError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencepost.core.security.acls import Acl, AclFilter, Operation, ResourceType

TYPES: Final = ("topic", "group", "cluster", "transactional-id")
"""The types of resources, as this command spells them."""

_host_option = click.option("--host", metavar="ADDRESS", help="Only from this IP address [default: from everywhere].")
_prefixed_option = click.option("--prefixed", is_flag=True, help="NAME is a prefix of the names of resources.")
_deny_option = click.option("--deny", is_flag=True, help="Deny instead of allow: a denial beats every permission.")
_type_argument = click.Choice(TYPES)


@click.group()
def acl() -> None:
    """List, add and remove permissions (ACLs).

    Works with a fencepost server and with Apache Kafka. Needs ALTER on the cluster, or a super user.

    \b
    Examples:
      fencepost acl add User:alice WRITE topic orders
      fencepost acl list --principal User:alice
      fencepost acl remove User:alice WRITE topic orders
    """


@acl.command()
@click.argument("principal")
@click.argument("operations", metavar="OPERATION[,OPERATION…]")
@click.argument("kind", metavar="TYPE", type=_type_argument)
@click.argument("name", required=False)
@_prefixed_option
@_deny_option
@_host_option
@client_command
def add(
    target: ClusterTarget,
    *,
    principal: str,
    operations: str,
    kind: str,
    name: str | None,
    prefixed: bool,
    deny: bool,
    host: str | None,
) -> None:
    """Allow a principal operations on a resource.

    PRINCIPAL is User:NAME; User:* stands for everyone. OPERATION is READ, WRITE, DESCRIBE, CREATE, DELETE, ALTER,
    ALL or another one of Kafka's. TYPE is topic, group, cluster (without a NAME) or transactional-id. The NAME * stands
    for all resources of the type.

    \b
    Examples:
      fencepost acl add User:alice READ,WRITE topic orders
      fencepost acl add User:alice READ group billing --prefixed
      fencepost acl add User:mallory ALL topic '*' --deny
    """
    from fencepost.core.security.acls import Acl, PatternType, Permission
    from fencepost.core.security.principal import parse_principal

    parse_principal(principal)
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    found = [
        Acl(resource_type(kind), pattern, _name(kind, name), principal, host or "*", each, permission)
        for each in _operations(operations)
    ]
    with target.admin() as admin:
        admin.create_acls(found)
    words = "; ".join(f"{each.principal} {_verb(each)} {each.operation.name} {_resource(each)}" for each in found)
    target.done(words, {"added": [_row(each) for each in found]})


@acl.command("list")
@click.option("--principal", metavar="TYPE:NAME", help="Only ACLs of this principal.")
@click.option("--type", "kind", type=_type_argument, help="Only ACLs of resources of this type.")
@click.option("--name", help="Only ACLs that cover the resource of this name.")
@client_command
def list_acls(target: ClusterTarget, principal: str | None, kind: str | None, name: str | None) -> None:
    """List ACLs.

    \b
    Examples:
      fencepost acl list
      fencepost acl list --type topic --name orders --json
    """
    from fencepost.core.security.acls import AclFilter, PatternType, ResourceType

    pattern = PatternType.ANY if name is None else PatternType.MATCH
    wanted = AclFilter(
        ResourceType.ANY if kind is None else resource_type(kind), pattern, name=name, principal=principal
    )
    with target.admin() as admin:
        found = admin.acls(wanted)
    _show(target, found)


@acl.command()
@click.argument("principal")
@click.argument("operations", metavar="[OPERATION[,OPERATION…]]", required=False)
@click.argument("kind", metavar="[TYPE]", type=_type_argument, required=False)
@click.argument("name", required=False)
@_prefixed_option
@_deny_option
@_host_option
@yes_option
@client_command
def remove(
    target: ClusterTarget,
    *,
    principal: str,
    operations: str | None,
    kind: str | None,
    name: str | None,
    prefixed: bool,
    deny: bool,
    host: str | None,
    yes: bool,
) -> None:
    """Remove ACLs of a principal.

    Removes those that `add` with the same arguments and options adds, or all that match. Asks for confirmation at a
    terminal.

    \b
    Examples:
      fencepost acl remove User:alice WRITE topic orders
      fencepost acl remove User:alice --yes                 all of alice's
    """
    filters = _filters(principal, operations, kind, name, prefixed=prefixed, deny=deny, host=host)
    with target.admin() as admin:
        found = [each for wanted in filters for each in admin.acls(wanted)]
        if found:
            confirm(f"remove {len(found)} ACLs of {principal}?", yes)
        # A broker of Apache Kafka lists removed ACLs for a moment longer; the controller, which removes them, does not.
        removed = [each for wanted in filters for each in admin.delete_acls(wanted)] if found else []
        if not removed:
            raise FencepostError(f"no ACL of {principal} matches; `fencepost acl list` shows those there are")
    target.done(f"removed {len(removed)} ACLs of {principal}", {"removed": [_row(each) for each in removed]})


def _filters(
    principal: str,
    operations: str | None,
    kind: str | None,
    name: str | None,
    *,
    prefixed: bool,
    deny: bool,
    host: str | None,
) -> list[AclFilter]:
    from fencepost.core.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType

    if kind is None:
        kinds, pattern, permission, resource = ResourceType.ANY, PatternType.ANY, Permission.ANY, None
    else:
        kinds, pattern, permission = resource_type(kind), PatternType.LITERAL, Permission.ALLOW
        resource = _name(kind, name)
    pattern = PatternType.PREFIXED if prefixed else pattern
    permission = Permission.DENY if deny else permission
    return [
        AclFilter(kinds, pattern, resource, principal, host, each, permission)
        for each in (_operations(operations) if operations else [Operation.ANY])
    ]


def resource_type(kind: str) -> ResourceType:
    from fencepost.core.security.acls import ResourceType

    return ResourceType[kind.upper().replace("-", "_")]


def operation_named(text: str) -> Operation:
    """Return the operation, or raise ConfigError with those there are."""
    from fencepost.core.security.acls import Operation

    known = {each.name: each for each in Operation if each not in (Operation.UNKNOWN, Operation.ANY)}
    found = known.get(text.strip().upper().replace("-", "_"))
    if found is None:
        raise ConfigError(f"unknown operation {text!r}: expected one of {', '.join(known)}")
    return found


def _operations(texts: str) -> list[Operation]:
    return [operation_named(text) for text in texts.split(",")]


def _name(kind: str, name: str | None) -> str:
    from fencepost.core.security.acls import CLUSTER_NAME

    if kind == "cluster":
        return name or CLUSTER_NAME
    if not name:
        raise ConfigError(f"give the name of the {kind}, or * for all of them")
    return name


def _verb(each: Acl) -> str:
    from fencepost.core.security.acls import Permission

    return "may" if each.permission is Permission.ALLOW else "may not"


def _resource(each: Acl) -> str:
    from fencepost.core.security.acls import PatternType, ResourceType

    kind = each.resource_type.name.lower().replace("_", "-")
    if each.resource_type is ResourceType.CLUSTER:
        return "the cluster"
    return f"{kind} {each.name}" + (" and what begins with it" if each.pattern_type is PatternType.PREFIXED else "")


def _row(each: Acl) -> dict[str, str]:
    return {
        "principal": each.principal,
        "permission": each.permission.name,
        "operation": each.operation.name,
        "type": each.resource_type.name.lower().replace("_", "-"),
        "name": each.name,
        "pattern": each.pattern_type.name,
        "host": each.host,
    }


def _show(target: ClusterTarget, found: Iterable[Acl]) -> None:
    rows = [_row(each) for each in found]
    names = ("principal", "permission", "operation", "type", "name", "pattern", "host")
    target.show(rows, [Column(name) for name in names], (row.values() for row in rows), empty="no ACLs")
