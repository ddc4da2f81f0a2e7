"""`fencepost ping`: a check that servers answer, with the round-trip time."""

from __future__ import annotations

from dataclasses import replace

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column


@click.command()
@client_command
def ping(target: ClusterTarget) -> None:
    """Check that every server answers.

    Fails if one of them does not, so that a script can wait for a server.

    \b
    Examples:
      fencepost ping
      until fencepost ping --servers 127.0.0.1:9092; do sleep 0.2; done
    """
    from fencepost.client.admin import Admin

    settings = target.settings()
    pongs = []
    for address in settings.servers:
        with Admin(replace(settings, servers=(address,))) as admin:
            pongs.append(admin.ping())
    rows = ((pong.address, f"{pong.milliseconds:.2f}", pong.apis) for pong in pongs)
    target.show(pongs, [Column("server"), Column("ms", True), Column("apis", True)], rows, empty="no servers")
