"""`fencepost sink`: the exactly-once sinks of Spark jobs, and the last micro-batch of each."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from fencepost.cli.options import ClusterTarget, client_command, confirm, yes_option
from fencepost.cli.output import Column, when
from fencepost.errors import ErrorCode, ServerError

if TYPE_CHECKING:
    from fencepost.client.cluster.settings import ClientSettings
    from fencepost.core.micro_batch.protocol import Progress


@click.group()
def sink() -> None:
    """List and reset the sinks of Spark jobs.

    \b
    Examples:
      fencepost sink list
      fencepost sink reset enrich
    """


@sink.command("list")
@client_command
def list_sinks(target: ClusterTarget) -> None:
    """List the sinks, with the last micro-batch of each.

    Jobs of fencepost.spark.write are named job.NAME, copies copy.CLUSTER.SOURCE.TARGET.

    \b
    Examples:
      fencepost sink list
      fencepost sink list --json
    """
    from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX

    settings = target.settings()
    with target.admin() as admin:
        names = [
            t.name.removeprefix(PROGRESS_TOPIC_PREFIX)
            for t in admin.topics(internal=True)
            if t.name.startswith(PROGRESS_TOPIC_PREFIX)
        ]
        found = {name: _last(settings, name) for name in names}
    columns = [Column("sink"), Column("query"), Column("batch", True), Column("rows", True)]
    columns += [Column("run by"), Column("since")]
    rows = (
        (
            name,
            progress.query if progress and progress.wrote_something else None,
            progress.batch if progress and progress.wrote_something else None,
            progress.rows if progress and progress.wrote_something else None,
            f"process {progress.process} on {progress.host}" if progress else None,
            when(progress.time_ms) if progress else None,
        )
        for name, progress in found.items()
    )
    target.show(found, columns, rows, empty="no sinks")


@sink.command()
@click.argument("name")
@yes_option
@client_command
def reset(target: ClusterTarget, name: str, yes: bool) -> None:
    """Delete the record of progress of sink NAME, and its stage topic.

    A new query may then use the name from its batch 0. A query that runs under the name is fenced and stops. The
    written records stay, so a query that starts from the beginning writes its rows again. Asks for confirmation at a
    terminal.

    \b
    Examples:
      fencepost sink reset enrich
      fencepost sink reset job.2026-11-15
    """
    from fencepost.client.cluster.routing import Routes
    from fencepost.client.micro_batch.topics import STAGE_TOPIC_PREFIX, check_name
    from fencepost.client.transactions.coordinator import Transactional
    from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX

    topic = PROGRESS_TOPIC_PREFIX + check_name(name)
    confirm(f"delete the progress of sink {name}, and fence the query that runs it?", yes)
    settings = target.settings()
    with target.admin() as admin, Routes(settings) as routes:
        progress = _last(settings, name)
        # In this order: the open transaction of a running driver is aborted before its record of progress is deleted.
        Transactional(routes, SINK_ID_PREFIX + name).init(60_000)
        admin.delete_topic(topic)
        with suppress(ServerError):  # a stage is deleted too, if there is one and if that is permitted
            admin.delete_topic(STAGE_TOPIC_PREFIX + name)
    target.done(f"reset {name}: it had written {progress or 'nothing yet'}", {"reset": name, "found": progress})


def _last(settings: ClientSettings, name: str) -> Progress | None:
    from fencepost.client.cluster.routing import Routes
    from fencepost.client.micro_batch.topics import ProgressTopic
    from fencepost.core.micro_batch.protocol import PROGRESS_TOPIC_PREFIX

    with Routes(settings) as routes:
        try:
            return ProgressTopic(routes, name).last(settled=False)
        except ServerError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise ServerError(
                    error.code, f"there is no sink {name!r} (no topic {PROGRESS_TOPIC_PREFIX}{name})"
                ) from error
            raise
