"""`fencepost quota`: limits on what clients use, by DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from fencepost.cli.options import ClusterTarget, client_command, confirm, pairs, yes_option
from fencepost.cli.output import Column
from fencepost.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

_TYPES = ("user", "client-id", "ip")


def _entity_options(function: F) -> F:
    """Add the options that name an entity, which the command gets as `entity`."""

    @functools.wraps(function)
    def command(*arguments: Any, **rest: Any) -> Any:
        entity: dict[str, str | None] = {}
        for kind in _TYPES:
            variable = kind.replace("-", "_")
            name, is_default = rest.pop(variable), rest.pop(f"default_{variable}")
            if name is not None and is_default:
                raise ConfigError(f"--{kind} and --default-{kind} cannot be used together")
            if name is not None or is_default:
                entity[kind] = name
        return function(*arguments, entity=entity, **rest)

    decorated: Any = command
    for kind, meta in reversed(list(zip(_TYPES, ("NAME", "ID", "ADDRESS"), strict=True))):
        default = click.option(f"--default-{kind}", is_flag=True, help=f"For each {kind} without its own quota.")
        decorated = click.option(f"--{kind}", metavar=meta, help=f"For this {kind}.")(default(decorated))
    return decorated  # type: ignore[no-any-return]


@click.group()
def quota() -> None:
    """Set, list and remove limits on what clients use.

    A quota is for a user, a client id, or both; --ip is for connections of an address. A client above its quota is
    slowed down, and others do not wait. The most specific quota applies, then --default-user and --default-client-id.
    Works with a fencepost server and with Apache Kafka.

    \b
    Keys:
      producer_byte_rate         bytes per second that a client writes
      consumer_byte_rate         bytes per second that a client reads
      request_percentage         percent of the server's time
      controller_mutation_rate   partitions per second that a client creates and deletes
      connection_creation_rate   connections per second of an address (--ip)

    \b
    Examples:
      fencepost quota set producer_byte_rate=1000000 --user alice
      fencepost quota set consumer_byte_rate=5000000 --default-user
      fencepost quota list
    """


@quota.command("set")
@click.argument("quotas", nargs=-1, required=True, metavar="KEY=VALUE…")
@_entity_options
@client_command
def set_quotas(target: ClusterTarget, *, quotas: tuple[str, ...], entity: dict[str, str | None]) -> None:
    """Set quotas of a user, client id or address.

    With a user and a client id, the quota is for the two together. Other keys stay as they are.

    \b
    Examples:
      fencepost quota set producer_byte_rate=1000000 consumer_byte_rate=2000000 --user alice
      fencepost quota set request_percentage=20 --user alice --client-id reports
      fencepost quota set connection_creation_rate=50 --default-ip
    """
    _require(entity)
    values = {key: _number(key, text) for key, text in pairs(quotas, "quota set").items()}
    with target.admin() as admin:
        admin.set_quotas(entity, values)
    target.done(f"set {', '.join(values)} of {_words(entity)}", {"entity": entity, "set": values})


@quota.command("list")
@_entity_options
@client_command
def list_quotas(target: ClusterTarget, *, entity: dict[str, str | None]) -> None:
    """List quotas.

    With options, only those of a user, client id or address.

    \b
    Examples:
      fencepost quota list
      fencepost quota list --user alice --json
    """
    with target.admin() as admin:
        found = sorted(admin.quotas(entity or None), key=lambda each: _order(each.entity))
    rows = (
        (*(_shown(each.entity, kind) for kind in _TYPES), key, f"{value:.10g}")
        for each in found
        for key, value in sorted(each.quotas.items())
    )
    columns = [*(Column(kind) for kind in _TYPES), Column("quota"), Column("value", True)]
    target.show(found, columns, rows, empty="no quotas")


@quota.command()
@click.argument("keys", nargs=-1, metavar="[KEY…]")
@_entity_options
@yes_option
@client_command
def remove(target: ClusterTarget, *, keys: tuple[str, ...], entity: dict[str, str | None], yes: bool) -> None:
    """Remove quotas of a user, client id or address.

    Removes the named keys, or all. Asks for confirmation at a terminal.

    \b
    Examples:
      fencepost quota remove --user alice
      fencepost quota remove producer_byte_rate --default-user --yes
    """
    _require(entity)
    confirm(f"remove {', '.join(keys) or 'all quotas'} of {_words(entity)}?", yes)
    with target.admin() as admin:
        removed = admin.remove_quotas(entity, keys)
    target.done(f"removed {', '.join(removed)} of {_words(entity)}", {"entity": entity, "removed": removed})


def _require(entity: dict[str, str | None]) -> None:
    if not entity:
        raise ConfigError("say whom the quota is for: --user, --client-id, --ip, or --default-user and so on")


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{key} must be a number, not {text!r}") from None


def _order(entity: Mapping[str, str | None]) -> list[tuple[str, str]]:
    return [(kind, name or "") for kind, name in sorted(entity.items())]


def _shown(entity: Mapping[str, str | None], kind: str) -> str | None:
    """Return a name for the table; the default has no name that a client could have too."""
    if kind not in entity:
        return None
    name = entity[kind]
    return "<default>" if name is None else name


def _words(entity: Mapping[str, str | None]) -> str:
    parts = (f"{kind} {name}" if name is not None else f"the default {kind}" for kind, name in entity.items())
    return " and ".join(parts)
