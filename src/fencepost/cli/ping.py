"""`fencepost ping`: a check that servers answer, with the round-trip time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.client.cluster.settings import ClientSettings


@click.command()
@click.option(
    "--http", "http_address", metavar="HOST:PORT", help="Ask a server's HTTP port (/healthz) instead of --servers."
)
@click.option("--ready", is_flag=True, help="With --http: ask if the server is ready for clients (/readyz).")
@client_command
def ping(target: ClusterTarget, http_address: str | None, ready: bool) -> None:
    """Check that every server answers.

    Fails if one of them does not, so that a script can wait for a server. The check of the HTTP port needs no login, so
    it is the one for container platforms.

    \b
    Examples:
      fencepost ping
      until fencepost ping --servers 127.0.0.1:9092; do sleep 0.2; done
      fencepost ping --http 127.0.0.1:9644 --ready
    """
    settings = target.settings()
    if http_address is not None:
        _ping_http(target, settings, http_address, ready)
        return
    if ready:
        raise click.UsageError("--ready needs --http HOST:PORT")
    from fencepost.client.admin_client import Admin

    pongs = []
    for address in settings.servers:
        with Admin(replace(settings, servers=(address,))) as admin:
            pongs.append(admin.ping())
    rows = ((pong.address, f"{pong.milliseconds:.2f}", pong.apis) for pong in pongs)
    target.show(pongs, [Column("server"), Column("ms", True), Column("apis", True)], rows, empty="no servers")


def _ping_http(target: ClusterTarget, settings: ClientSettings, address: str, ready: bool) -> None:
    from fencepost.cli.http_get import HttpServer

    server = HttpServer(address, settings.security, logs_in=False)  # these pages are for everybody
    path = "/readyz" if ready else "/healthz"
    began = time.perf_counter()
    page = server.get(path, seconds=settings.request_timeout)
    milliseconds = (time.perf_counter() - began) * 1000
    if page.status != 200:
        raise FencepostError(
            f"{server.url}{path} answers {page.status}: {page.text.splitlines()[0] if page.text else ''}"
        )
    found = {"url": server.url, "milliseconds": milliseconds, "answer": page.text}
    columns = [Column("server"), Column("ms", True), Column("answer")]
    target.show([found], columns, [(server.url, f"{milliseconds:.2f}", page.text)], empty="no server")
