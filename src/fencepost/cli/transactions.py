"""`fencepost transactions`: the open transactions with their age, and how to abort one that blocks readers. `fencepost
producers`: the state that each partition keeps per idempotent producer.
"""

from __future__ import annotations

import time

import click

from fencepost.cli.options import ClusterTarget, client_command, partitions_option
from fencepost.cli.output import Column, show_json, show_table, when
from fencepost.core.rows import plain
from fencepost.errors import ErrorCode, ServerError


@click.group()
def transactions() -> None:
    """List, describe and abort transactions.

    An open transaction blocks readers of committed records at its first offset, in every partition it has written to,
    until it ends or times out.

    \b
    Examples:
      fencepost transactions list --open
      fencepost transactions describe billing-7
      fencepost transactions abort billing-7
    """


@transactions.command("list")
@click.option("--open", "only_open", is_flag=True, help="Only ids with an open transaction.")
@client_command
def list_transactions(target: ClusterTarget, only_open: bool) -> None:
    """List transactional ids and how long each is open.

    \b
    Examples:
      fencepost transactions list
      fencepost transactions list --open --json
    """
    from fencepost.client.admin.transactions import OPEN

    with target.admin() as admin:
        found = admin.transactions(states=sorted(OPEN) if only_open else ())
    columns = [Column("transactional id"), Column("state"), Column("pid", True), Column("age", True)]
    rows = ((entry.name, entry.state, entry.pid, age(entry.started_ms)) for entry in found)
    target.show(found, columns, rows, empty="no open transactions" if only_open else "no transactional ids")


@transactions.command()
@click.argument("name")
@client_command
def describe(target: ClusterTarget, name: str) -> None:
    """Show state, producer, age and partitions.

    \b
    Examples:
      fencepost transactions describe billing-7
      fencepost transactions describe billing-7 --json
    """
    with target.admin() as admin:
        described = admin.describe_transaction(name)
    if target.as_json:
        show_json(plain(described))
        return
    at = f"{described.coordinator.host}:{described.coordinator.port}"
    who = f"pid {described.pid}, epoch {described.epoch}"
    click.echo(f"transactional id {name}: {described.state}, {who}, coordinator {at}")
    if described.started_ms is not None:
        limit = f"times out after {described.timeout_ms / 1000:g} s"
        click.echo(f"open since {when(described.started_ms)}, {age(described.started_ms)} ago; {limit}")
    rows = ((partition.topic, partition.partition) for partition in described.partitions)
    show_table([Column("topic"), Column("partition", True)], rows, empty="no partitions")


@transactions.command()
@click.argument("name", required=False)
@click.option("--hanging", metavar="TOPIC", help="Instead of NAME: abort the hanging transaction in this topic,")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="in this partition,")
@click.option("--pid", type=click.IntRange(min=0), help="of this producer id.")
@client_command
def abort(
    target: ClusterTarget, *, name: str | None, hanging: str | None, partition: int | None, pid: int | None
) -> None:
    """Abort the open transaction of NAME, and fence its producer.

    A hanging transaction is open in a partition (`fencepost producers` shows it) but unknown to its coordinator. Abort
    it with --hanging, --partition and --pid.

    \b
    Examples:
      fencepost transactions abort billing-7
      fencepost transactions abort --hanging orders --partition 3 --pid 4711
    """
    given = [option for option in (hanging, partition, pid) if option is not None]
    if len(given) != (3 if name is None else 0):
        raise click.UsageError("give NAME, or --hanging, --partition and --pid together")
    with target.admin() as admin:
        if name is not None:
            was = admin.abort_transaction(name)
            target.done(
                f"aborted the transaction of {name}: pid {was.pid}, epoch {was.epoch} is fenced",
                {"aborted": name, "pid": was.pid, "epoch": was.epoch},
            )
            return
        assert hanging is not None
        assert partition is not None
        found = [one for one in admin.producers(hanging, partitions=[partition]) if one.pid == pid]
        if not found or found[0].transaction_start is None:
            raise ServerError(
                ErrorCode.INVALID_TXN_STATE, f"pid {pid} has no open transaction in {hanging}-{partition}"
            )
        admin.abort_hanging_transaction(hanging, found[0])
    where = f"{hanging}-{partition}"
    target.done(f"aborted the hanging transaction of pid {pid} in {where}", {"aborted": where, "pid": pid})


def age(started_ms: int | None) -> str | None:
    """Return the time since `started_ms`, by this machine's clock."""
    if started_ms is None:
        return None
    seconds = max(0.0, time.time() - started_ms / 1000)
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@click.command()
@click.argument("topic")
@partitions_option
@client_command
def producers(target: ClusterTarget, topic: str, partitions: tuple[int, ...]) -> None:
    """Show the idempotent producers of TOPIC.

    H(P) is the highest sequence that the partition has accepted from producer P; the next batch must start one above
    it. An open transaction blocks readers of committed records at its first offset.

    \b
    Examples:
      fencepost producers orders
      fencepost producers orders --partition 0 --json
    """
    with target.admin() as admin:
        found = admin.producers(topic, partitions=partitions or None)
    columns = [Column("partition", True), Column("pid", True), Column("epoch", True), Column("H(P)", True)]
    columns += [Column("last timestamp"), Column("open transaction", True)]
    rows = (
        (
            state.partition,
            state.pid,
            state.epoch,
            state.last_sequence if state.last_sequence >= 0 else None,
            when(state.last_timestamp),
            state.transaction_start,
        )
        for state in found
    )
    target.show(found, columns, rows, empty=f"no idempotent producers in {topic}")
