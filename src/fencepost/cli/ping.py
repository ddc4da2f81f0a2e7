"""`fencepost ping`: is a server there, and how far away?"""

from __future__ import annotations

from dataclasses import replace

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column


@click.command()
@client_command
def ping(target: ClusterTarget) -> None:
    """Ask every server for a sign of life.

    Fails if one of them does not answer, so that a script can wait for a server.

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
