"""`fencepost group`: consumer groups, their lag, and resets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from fencepost.cli.options import ClusterTarget, client_command, confirm, partitions_option, yes_option
from fencepost.cli.output import Column, show_json, show_table
from fencepost.core.groups.resets import EXAMPLE_TIME, ResetKind, ResetTarget, parse_shift, parse_target
from fencepost.core.rows import plain
from fencepost.errors import ConfigError
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from fencepost.core.rows import GroupMember


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups.

    \b
    Examples:
      fencepost group list
      fencepost group describe billing
      fencepost group reset billing --topic orders --to earliest --dry-run
    """


@group.command("list")
@client_command
def list_groups(target: ClusterTarget) -> None:
    """List the groups.

    \b
    Examples:
      fencepost group list
      fencepost group list --json
    """
    with target.admin() as admin:
        found = admin.groups()
    rows = ((entry.name, entry.state, entry.kind) for entry in found)
    target.show(found, [Column("group"), Column("state"), Column("kind")], rows, empty="no groups")


@group.command()
@click.argument("name")
@client_command
def describe(target: ClusterTarget, name: str) -> None:
    """Show a group's members, committed offsets and lag.

    \b
    Examples:
      fencepost group describe billing
      fencepost group describe billing --json | jq '[.offsets[].lag] | add'
    """
    with target.admin() as admin:
        described = admin.describe_group(name)
        offsets = admin.group_offsets(name)
    if target.as_json:
        show_json(plain(described) | {"offsets": plain(offsets)})
        return
    at = f"{described.coordinator.host}:{described.coordinator.port}"
    members = f"{len(described.members)} member(s)"
    kind = f"{described.kind} ({described.assignor})" if described.assignor else described.kind
    click.echo(f"group {name}: {described.state}, {kind}, {members}, coordinator {at}")
    if described.members:
        shown = sorted(((_called(member), member) for member in described.members), key=lambda pair: pair[0])
        show_table(
            [Column("member"), Column("client"), Column("host"), Column("partitions")],
            [(called, each.client_id, each.host, _by_topic(each.assignment)) for called, each in shown],
            empty="",
        )
        click.echo()
    holders = {where: _called(member) for member in described.members for where in member.assignment}
    columns = [Column("topic"), Column("partition", True), Column("committed", True), Column("end", True)]
    columns += [Column("lag", True), Column("member")]
    rows = []
    for entry in offsets:
        holder = holders.pop(TopicPartition(entry.topic, entry.partition), None)
        rows.append((entry.topic, entry.partition, entry.committed, entry.end, entry.lag, holder))
    rows += [(*where, None, None, None, holder) for where, holder in sorted(holders.items())]
    show_table(columns, rows, empty="no committed offsets and no assignments")


def _called(member: GroupMember) -> str:
    """Return the name of a static member; of another one, the id that its client or the coordinator chose."""
    return member.instance_id or member.member_id


def _by_topic(partitions: Iterable[TopicPartition]) -> str | None:
    """Return them as `orders 0,1,2; parcels 0`."""
    topics: dict[str, list[str]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(str(index))
    return "; ".join(f"{topic} {','.join(indexes)}" for topic, indexes in topics.items()) or None


@group.command()
@click.argument("name")
@click.option("--topic", required=True, help="The topic whose committed offsets to move.")
@click.option("--to", metavar="WHERE", help=f"earliest, latest, an offset, or a time ({EXAMPLE_TIME}, local).")
@click.option("--shift-by", metavar="N", help="Forward by so many offsets, or backward if negative.")
@partitions_option
@click.option("--dry-run", is_flag=True, help="Show the changes without applying them.")
@client_command
def reset(
    target: ClusterTarget,
    *,
    name: str,
    topic: str,
    to: str | None,
    shift_by: str | None,
    partitions: tuple[int, ...],
    dry_run: bool,
) -> None:
    """Move the committed offsets of a group without members.

    \b
    Examples:
      fencepost group reset billing --topic orders --to earliest --dry-run
      fencepost group reset billing --topic orders --to 2026-11-15T08:00
      fencepost group reset billing --topic orders --to 4711 --partition 2
      fencepost group reset billing --topic orders --shift-by -100
    """
    kind, value = parse_where(to, shift_by)
    with target.admin() as admin:
        if kind is ResetKind.TIME:
            changes = admin.reset_group(name, topic, value, partitions=partitions or None, dry_run=dry_run)
        elif kind is ResetKind.SHIFT:
            changes = admin.shift_group(name, topic, value, partitions=partitions or None, dry_run=dry_run)
        else:
            chosen = partitions or tuple(entry.partition for entry in admin.describe_topic(topic).partitions)
            wanted = dict.fromkeys(chosen, value)
            changes = admin.set_group_offsets(name, topic, wanted, dry_run=dry_run)
    columns = [Column("topic"), Column("partition", True), Column("before", True), Column("after", True)]
    rows = ((change.topic, change.partition, change.before, change.after) for change in changes)
    target.show({"dry_run": dry_run, "changes": changes}, columns, rows, empty="nothing to change")
    if dry_run and not target.as_json:
        click.echo("dry run: nothing was changed")


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@yes_option
@client_command
def delete(target: ClusterTarget, names: tuple[str, ...], yes: bool) -> None:
    """Delete groups without members, and their offsets.

    Asks for confirmation at a terminal.

    \b
    Examples:
      fencepost group delete billing
      fencepost group delete billing reports --yes
    """
    confirm(f"delete {', '.join(names)} with all committed offsets?", yes)
    with target.admin() as admin:
        for name in names:
            admin.delete_group(name)
    target.done(f"deleted {', '.join(names)}", {"deleted": names})


def parse_where(to: str | None, shift_by: str | None) -> ResetTarget:
    """Return the destination that the options name."""
    if (to is None) == (shift_by is None):
        raise ConfigError("give either --to or --shift-by")
    try:
        return parse_target(to) if to is not None else parse_shift(shift_by or "")
    except ConfigError as error:
        raise ConfigError(f"{'--shift-by' if to is None else '--to'} {error}") from None
