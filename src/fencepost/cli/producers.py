"""`fencepost producers`: the state that each partition keeps per idempotent producer."""

from __future__ import annotations

import click

from fencepost.cli.options import ClusterTarget, client_command, partitions_option
from fencepost.cli.output import Column, when


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
