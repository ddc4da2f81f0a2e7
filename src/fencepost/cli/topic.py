"""`fencepost topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli.options import ClusterTarget, client_command, confirm, pairs, yes_option
from fencepost.cli.output import Column, show_json, show_table
from fencepost.core.rows import plain
from fencepost.errors import ConfigError, ServerError

if TYPE_CHECKING:
    from fencepost.client.admin_client import Admin
    from fencepost.core.rows import ConfigEntry


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics.

    \b
    Examples:
      fencepost topic create orders --partitions 3 --set retention.ms=86400000
      fencepost topic list
      fencepost topic describe orders --json
    """


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="Number of partitions [default: the server's].")
@click.option("--replication", type=click.IntRange(min=1), help="Replicas, on a Kafka cluster [default: the server's].")
@click.option("--set", "configs", multiple=True, metavar="NAME=VALUE", help="A config of the topic; repeatable.")
@client_command
def create(
    target: ClusterTarget,
    names: tuple[str, ...],
    partitions: int | None,
    replication: int | None,
    configs: tuple[str, ...],
) -> None:
    """Create topics, and wait until they can be written to.

    \b
    Examples:
      fencepost topic create orders
      fencepost topic create orders payments -p 3 --set cleanup.policy=compact
    """
    from fencepost.client.admin.results import NewTopic

    chosen = pairs(configs, "--set")
    wanted = [NewTopic(name, partitions or -1, replication or -1, chosen) for name in names]
    with target.admin() as admin, _naming_the_successful("created", names):
        admin.create_topics(wanted)
    target.done(f"created {', '.join(names)}", {"created": names})


@topic.command("list")
@click.option("--internal", is_flag=True, help="Include internal topics.")
@client_command
def list_topics(target: ClusterTarget, internal: bool) -> None:
    """List the topics.

    \b
    Examples:
      fencepost topic list
      fencepost topic list --internal --json
    """
    with target.admin() as admin:
        found = admin.topics(internal=internal)
    columns = [Column("topic"), Column("partitions", True), Column("replication", True)]
    rows = ((entry.name, entry.partitions, entry.replication) for entry in found)
    target.show(found, columns, rows, empty="no topics; `fencepost topic create NAME` creates one")


@topic.command()
@click.argument("name")
@client_command
def describe(target: ClusterTarget, name: str) -> None:
    """Show a topic's partitions, offsets and configs.

    Shows the configs that were set; --json shows all configs, with the defaults.

    \b
    Examples:
      fencepost topic describe orders
      fencepost topic describe orders --json | jq '.configs[] | select(.name == "retention.ms")'
    """
    with target.admin() as admin:
        described = admin.describe_topic(name)
        first, end = admin.earliest(name), admin.latest(name)
        configs = _configs(admin, name)
    partitions: list[dict[str, Any]] = [
        plain(partition) | {"start_offset": first[partition.partition], "end_offset": end[partition.partition]}
        for partition in described.partitions
    ]
    if target.as_json:
        show_json(plain(described) | {"partitions": partitions, "configs": configs})
        return
    click.echo(f"topic {described.name}, id {described.topic_id}")
    changed = [entry for entry in configs or () if entry.source == "topic"]
    for entry in changed:
        click.echo(f"  {entry.name}={entry.value}")
    columns = [Column("partition", True), Column("leader", True), Column("replicas"), Column("in sync")]
    columns += [Column("start", True), Column("end", True), Column("records", True)]
    rows = (
        (
            entry["partition"],
            entry["leader"] if entry["leader"] >= 0 else None,
            entry["replicas"],
            entry["in_sync"],
            entry["start_offset"],
            entry["end_offset"],
            entry["end_offset"] - entry["start_offset"],
        )
        for entry in partitions
    )
    show_table(columns, list(rows), empty="no partitions")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@yes_option
@client_command
def delete(target: ClusterTarget, names: tuple[str, ...], yes: bool) -> None:
    """Delete topics with all their records.

    Asks for confirmation at a terminal.

    \b
    Examples:
      fencepost topic delete orders
      fencepost topic delete orders payments --yes
    """
    confirm(f"delete {', '.join(names)} with all records?", yes)
    with target.admin() as admin, _naming_the_successful("deleted", names):
        admin.delete_topics(names)
    target.done(f"deleted {', '.join(names)}", {"deleted": names})


@topic.command()
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(min=1), help="The new number of partitions; only more.")
@click.option("--set", "configs", multiple=True, metavar="NAME=VALUE", help="A config to set; repeatable.")
@click.option("--unset", multiple=True, metavar="NAME", help="A config to reset to its default; repeatable.")
@click.option("--dry-run", is_flag=True, help="Let the server check the change without applying it.")
@client_command
def alter(
    target: ClusterTarget,
    *,
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Change a topic's configs, or add partitions.

    Adding partitions moves keys: later records of a key may go to another partition than the earlier ones.

    \b
    Examples:
      fencepost topic alter orders --set retention.ms=3600000 --unset retention.bytes
      fencepost topic alter orders --partitions 6 --dry-run
    """
    chosen = pairs(configs, "--set")
    if partitions is None and not chosen and not unset:
        raise ConfigError("nothing to change: give --partitions, --set or --unset")
    with target.admin() as admin:
        if chosen or unset:
            admin.alter_topic(name, chosen, remove=unset, validate_only=dry_run)
        if partitions is not None:
            admin.create_partitions(name, partitions, validate_only=dry_run)
    changed = {"topic": name, "partitions": partitions, "set": chosen, "unset": unset, "dry_run": dry_run}
    target.done(f"{'would alter' if dry_run else 'altered'} {name}", changed)


@contextmanager
def _naming_the_successful(verb: str, names: tuple[str, ...]) -> Iterator[None]:
    """Add to an error about some topics the names of the others, for which the call succeeded."""
    try:
        yield
    except ServerError as error:
        done = [name for name in names if name not in error.failed]
        if error.failed and done:
            raise ServerError(error.code, f"{error.reason}; {verb} {', '.join(done)}") from error
        raise


def _configs(admin: Admin, name: str) -> tuple[ConfigEntry, ...] | None:
    """Return the topic's configs; None from a server without DescribeConfigs."""
    from fencepost.wire.apis import Key

    return admin.topic_configs(name) if admin.offers(Key.DESCRIBE_CONFIGS) else None
