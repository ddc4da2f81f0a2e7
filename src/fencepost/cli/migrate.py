"""`fencepost migrate`: everything of one cluster to another, with the same offsets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.cli.migrate_plan import MigrationPlan, TopicPlan
    from fencepost.client.admin import Admin
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
    "--topic", "patterns", multiple=True, metavar="PATTERN", help="Only these topics, such as 'orders*'; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing.")
@click.option("--without-guards", is_flag=True, help="Migrate guarded topics, although the target cannot guard them.")
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
    to_config: Path | None,
) -> None:
    """Move topics, group offsets and ACLs to Apache Kafka.

    SERVERS is the target. Every record is copied once and keeps its offset, so committed offsets and the checkpoints of
    Spark jobs stay valid: programs go on with a changed address. Run it while programs still write, then stop them and
    run it again: it continues where it was. Nothing else may write to the target meanwhile.

    Guarded topics (fencepost.writer.group) are refused unless --without-guards says so. Passwords of users cannot be
    read from any server: the plan names the users to add again.

    \b
    Examples:
      fencepost migrate kafka1:9092,kafka2:9092 --dry-run
      fencepost migrate kafka1:9092 --servers 127.0.0.1:9092 --topic 'orders*'
      fencepost migrate kafka1:9092 --without-guards --json
    """
    from fencepost.cli.migrate_plan import make_plan
    from fencepost.client.admin import Admin

    source_settings = target.settings()
    target_settings = ClusterTarget(to, to_config, (), target.as_json).settings()
    with Admin(source_settings) as source, Admin(target_settings) as there:
        if source.cluster().cluster_id == there.cluster().cluster_id:
            raise FencepostError("source and target are the same cluster: SERVERS must name another one")
        plan = make_plan(source, there, patterns, without_guards=without_guards)
        _show_plan(target, plan, dry_run)
        if plan.refused and not dry_run:
            first = plan.refused[0]
            more = f" (and {len(plan.refused) - 1} more)" if len(plan.refused) > 1 else ""
            raise FencepostError(f"nothing was copied: {first.name}: {first.detail}{more}")
        if dry_run:
            return
        records = _carry_out(source, there, source_settings, target_settings, plan)
        moved = _still_moving(source, plan)
    done = {"records": records, "groups": len(plan.groups), "acls": len(plan.acls), "moved_meanwhile": moved}
    topics = "1 topic" if len(plan.topics) == 1 else f"{len(plan.topics)} topics"
    sentence = f"{topics}: {records} records copied, {len(plan.groups)} groups and {len(plan.acls)} ACLs set"
    target.done(sentence, {**done, "plan": [asdict(each) for each in plan.items]})
    if moved:
        raise FencepostError(
            f"{', '.join(moved)} got new records meanwhile, or has an open transaction: stop the producers, and run it "
            "again"
        )


def _show_plan(target: ClusterTarget, plan: MigrationPlan, dry_run: bool) -> None:
    if target.as_json and not dry_run:
        return  # it is part of the result
    rows = ((each.kind, each.name, each.fate, each.detail) for each in plan.items)
    columns = [Column("kind"), Column("name"), Column("fate"), Column("detail")]
    target.show([asdict(each) for each in plan.items], columns, rows, empty="the source has nothing to migrate")


def _carry_out(
    source: Admin, there: Admin, source_settings: ClientSettings, target_settings: ClientSettings, plan: MigrationPlan
) -> int:
    from fencepost.cli.migrate_copy import OffsetCopier
    from fencepost.types import TopicPartition

    copier = OffsetCopier(source_settings, target_settings, f"fencepost-migrate.{source.cluster().cluster_id}")
    records = 0
    try:
        for topic in plan.topics:
            if topic.exists:
                # All of them before the first change: a topic that only has the same name must stay as it is.
                for partition in range(topic.partitions):
                    copier.demand_copy(TopicPartition(topic.name, partition))
        for topic in plan.topics:
            _create(there, topic)
            for partition in range(topic.partitions):
                records += copier.copy(TopicPartition(topic.name, partition))
            _restore_configs(there, topic)
    finally:
        copier.close()
    for group, offsets in plan.groups.items():
        for name in {where.topic for where in offsets}:
            first = there.earliest(name)  # one more than the source's, if that is a marker
            chosen = {
                each.partition: max(at, first[each.partition]) for each, at in offsets.items() if each.topic == name
            }
            there.set_group_offsets(group, name, chosen)
    if plan.acls:
        there.create_acls(plan.acls)
    return records


def _create(there: Admin, topic: TopicPlan) -> None:
    from fencepost.client.manage.lasting import create_lasting_topic

    configs = {**topic.configs, **_WHILE_COPYING}
    if not create_lasting_topic(there, topic.name, topic.partitions, configs=configs):
        there.alter_topic(topic.name, _WHILE_COPYING)


def _restore_configs(there: Admin, topic: TopicPlan) -> None:
    kept = {name: value for name, value in (topic.configs | topic.lifetime).items() if name in _WHILE_COPYING}
    there.alter_topic(topic.name, kept, remove=[name for name in _WHILE_COPYING if name not in kept])


def _still_moving(source: Admin, plan: MigrationPlan) -> list[str]:
    return [topic.name for topic in plan.topics if source.latest(topic.name) != topic.end]
