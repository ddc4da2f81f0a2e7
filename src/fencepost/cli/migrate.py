"""`fencepost migrate`: everything of one cluster to another, with the same offsets."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column, counted, progress
from fencepost.errors import ErrorCode, FencepostError, ServerError, Unreachable

if TYPE_CHECKING:
    from fencepost.cli.migrate_copy import Copied
    from fencepost.cli.migrate_plan import MigrationPlan, TopicPlan
    from fencepost.client.admin_client import Admin
    from fencepost.client.cluster.settings import ClientSettings

_WHILE_COPYING: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
"""Configs of a target until its copy is whole: records keep their times, and none is removed before."""


@click.command()
@click.argument("to", metavar="SERVERS")
@click.option(
    "--topic",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only these topics, such as 'orders*', with their groups and ACLs; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing.")
@click.option("--without-guards", is_flag=True, help="Migrate guarded topics, although the target cannot guard them.")
@click.option(
    "--set-groups-back", "set_back", is_flag=True, help="Set a group's offset also where it is further on the target."
)
@click.option(
    "--to-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings of the target, as --config; with its TLS and login.",
)
@client_command
def migrate(
    target: ClusterTarget,
    to: str,
    patterns: tuple[str, ...],
    dry_run: bool,
    without_guards: bool,
    set_back: bool,
    to_config: Path | None,
) -> None:
    """Move topics, group offsets, ACLs and quotas to Apache Kafka.

    SERVERS is the target. Every record is copied once and keeps its offset, so committed offsets and the checkpoints of
    Spark jobs stay valid: programs go on with a changed address. Run it while programs still write, then stop them and
    run it again: it continues where it was. Nothing else may write to the target meanwhile.

    A group's offset on the target is never moved back: consumers may have started there. Guarded topics
    (fencepost.writer.group) are refused unless --without-guards says so. Passwords of users cannot be read from any
    server: the plan names the users to add again.

    \b
    Examples:
      fencepost migrate kafka1:9092,kafka2:9092 --dry-run
      fencepost migrate kafka1:9092 --servers 127.0.0.1:9092 --topic 'orders*'
      fencepost migrate kafka1:9092 --without-guards --json
    """
    from fencepost.cli.migrate_plan import make_plan
    from fencepost.client.admin_client import Admin

    source_settings = target.settings()
    target_settings = ClusterTarget(to, to_config, (), target.as_json).settings()
    with Admin(source_settings) as source, Admin(target_settings) as there:
        if source.cluster().cluster_id == _cluster_of(there):
            raise FencepostError("source and target are the same cluster: SERVERS must name another one")
        plan = make_plan(source, there, patterns, without_guards=without_guards, set_back=set_back)
        _show_plan(target, plan, dry_run)
        if plan.refused and not dry_run:
            first = plan.refused[0]
            more = f" (and {len(plan.refused) - 1} more)" if len(plan.refused) > 1 else ""
            raise FencepostError(f"nothing was copied: {first.name}: {first.detail}{more}")
        if dry_run:
            return
        began = time.monotonic()
        try:
            copied = _copy(source, there, source_settings, target_settings, plan)
            ahead, busy = _set_groups(there, plan, set_back=set_back)
            for quotas in plan.quotas:
                there.set_quotas(quotas.entity, quotas.quotas)
            if plan.acls:
                there.create_acls(plan.acls)
            moved = _still_moving(source, plan)
        except Unreachable as error:
            # It has the address: --servers may be right, and the target gone, or the other way round.
            raise FencepostError(f"{error}. What was copied stays: run it again, and it continues") from error
        seconds = time.monotonic() - began
    records, size = sum(each.records for each in copied), sum(each.size for each in copied)
    done = {
        "records": records,
        "bytes": size,
        "seconds": round(seconds, 3),
        "groups": len(plan.groups),
        "groups_ahead": ahead,
        "groups_busy": busy,
        "acls": len(plan.acls),
        "quotas": len(plan.quotas),
        "moved_meanwhile": moved,
    }
    target.done(
        f"{counted(len(plan.topics), 'topic')}: {counted(records, 'record')} copied in {seconds:.1f} s "
        f"({records / seconds:,.0f} records/s, {size / seconds / 1e6:.1f} MB/s); "
        f"{counted(len(plan.groups), 'group')}, {counted(len(plan.acls), 'ACL')} and "
        f"{counted(len(plan.quotas), 'quota')} set",
        {**done, "plan": [asdict(each) for each in plan.items]},
    )
    if busy:
        raise FencepostError(
            f"offsets of {', '.join(busy)} were not set: it has members on the target. Stop them, and run it again"
        )
    if moved:
        raise FencepostError(
            f"{', '.join(moved)} got new records meanwhile, or has an open transaction: stop the producers, and run it "
            "again"
        )


def _cluster_of(there: Admin) -> str:
    """Return the target's cluster id. If it does not answer, the argument is wrong, not --servers."""
    try:
        return there.cluster().cluster_id
    except FencepostError as error:
        raise FencepostError(f"the target: {error} (SERVERS, --to-config)") from error


def _show_plan(target: ClusterTarget, plan: MigrationPlan, dry_run: bool) -> None:
    if target.as_json and not dry_run:
        return  # it is part of the result
    rows = ((each.kind, each.name, each.fate, each.detail) for each in plan.items)
    columns = [Column("kind"), Column("name"), Column("fate"), Column("detail")]
    target.show([asdict(each) for each in plan.items], columns, rows, empty="the source has nothing to migrate")


def _copy(
    source: Admin, there: Admin, source_settings: ClientSettings, target_settings: ClientSettings, plan: MigrationPlan
) -> list[Copied]:
    from fencepost.cli.migrate_copy import OffsetCopier
    from fencepost.types import TopicPartition

    copier = OffsetCopier(source_settings, target_settings, f"fencepost-migrate.{source.cluster().cluster_id}")
    copied: list[Copied] = []
    try:
        existing = [topic for topic in plan.topics if topic.exists]
        # All of them before the first change: a topic that only has the same name must stay as it is.
        copier.demand_copies(
            TopicPartition(topic.name, partition) for topic in existing for partition in range(topic.partitions)
        )
        total = sum(sum(topic.end.values()) for topic in plan.topics)
        total -= sum(sum(there.latest(topic.name).values()) for topic in existing)
        for topic in plan.topics:
            _create(there, topic)
        plans = {topic.name: topic for topic in plan.topics}
        with progress("copied", total=total, rates=True) as advance:
            for name, found in copier.copy({topic.name: topic.partitions for topic in plan.topics}, advance):
                _restore_configs(there, plans[name])
                copied += found
    finally:
        copier.close()
    return copied


def _set_groups(there: Admin, plan: MigrationPlan, *, set_back: bool) -> tuple[list[str], list[str]]:
    """Set the committed offsets. Return the groups that are further on the target, and those that have members there:
    looked at again, because consumers may have been started since the plan was made."""
    from fencepost.cli.migrate_plan import decide
    from fencepost.core.migration import OffsetTransfer

    ahead, busy = [], []
    for group, offsets in plan.groups.items():
        found = decide(there, group, offsets, has_members=False, set_back=set_back)
        if any(fate is OffsetTransfer.AHEAD for fate, _ in found.values()):
            ahead.append(group)
        wanted = {where: each for where, (fate, each) in found.items() if fate is OffsetTransfer.SET}
        try:
            for topic in {where.topic for where in wanted}:
                chosen = {where.partition: each for where, each in wanted.items() if where.topic == topic}
                there.set_group_offsets(
                    group,
                    topic,
                    {partition: each.offset for partition, each in chosen.items()},
                    metadata={partition: each.metadata for partition, each in chosen.items()},
                )
        except ServerError as error:
            if error.code is not ErrorCode.NON_EMPTY_GROUP:
                raise
            busy.append(group)
    return ahead, busy


def _create(there: Admin, topic: TopicPlan) -> None:
    from fencepost.client.admin.lasting import create_lasting_topic

    configs = {**topic.configs, **_WHILE_COPYING}
    if not create_lasting_topic(there, topic.name, topic.partitions, configs=configs):
        there.alter_topic(topic.name, _WHILE_COPYING)


def _restore_configs(there: Admin, topic: TopicPlan) -> None:
    kept = {name: value for name, value in (topic.configs | topic.lifetime).items() if name in _WHILE_COPYING}
    there.alter_topic(topic.name, kept, remove=[name for name in _WHILE_COPYING if name not in kept])


def _still_moving(source: Admin, plan: MigrationPlan) -> list[str]:
    return [topic.name for topic in plan.topics if source.latest(topic.name) != topic.end]
