"""`fencepost serve`: the embedded server in the foreground."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from fencepost.cli.options import pairs
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.server.settings import ServerConfig

_SYNCED = {
    "always": "an acknowledged record is on the disk",
    "os": "an acknowledged record survives kill -9 of the server, not a power failure",
}


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory of the log [default: ./fencepost-data].",
)
@click.option("--ephemeral", is_flag=True, help="Use a temporary directory and remove it at the end.")
@click.option(
    "--listen",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; port 0 takes a free one.",
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="Address that clients connect to [default: the one they dialled]."
)
@click.option(
    "--sync",
    type=click.Choice(["always", "os"]),
    default="always",
    show_default=True,
    help="Acknowledge a record when it is on the disk, or (os) when it is in the page cache, as Kafka does.",
)
@click.option("--insecure", is_flag=True, help="Allow listening beyond loopback, without authentication.")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Partitions of topics that are created on first use.",
)
@click.option("--auto-create/--no-auto-create", default=True, show_default=True, help="Create topics on first use.")
@click.option("-X", "options", multiple=True, metavar="NAME=VALUE", help="A further setting; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the address and the data directory as one line of JSON.")
@click.option("-v", "--verbose", count=True, help="Log more; -vv logs everything.")
def serve(
    *,
    data: Path | None,
    ephemeral: bool,
    listen: str,
    advertise: str | None,
    sync: str,
    insecure: bool,
    partitions: int,
    auto_create: bool,
    options: tuple[str, ...],
    as_json: bool,
    verbose: int,
) -> None:
    """Run a server that any Kafka client can use.

    Once it is ready it prints its address and its data directory. SIGTERM and Ctrl-C finish the requests that have
    begun, and stop it. The next start resumes with the same data, also after kill -9.

    \b
    Examples:
      fencepost serve                                        for this machine, data in ./fencepost-data
      fencepost serve --ephemeral --listen 127.0.0.1:0       for a test: any free port, temporary data
      fencepost serve --listen 0.0.0.0:9092 --insecure       for a trusted network
      fencepost serve --sync os --partitions 4 -X connection_idle_ms=60000
    """
    if ephemeral and data is not None:
        raise click.UsageError("--data and --ephemeral cannot be combined")
    _set_up_logging(verbose)
    from fencepost.server.server import ServerConfig, run

    config = ServerConfig(
        data=None if ephemeral else (data or Path("fencepost-data")),
        listen=listen,
        advertise=advertise,
        sync=cast("Literal['always', 'os']", sync),
        insecure=insecure,
        auto_create_topics=auto_create,
        default_partitions=partitions,
    ).with_options(pairs(options, "-X"))
    if ephemeral and config.data is not None:
        raise click.UsageError("-X data and --ephemeral cannot be combined")
    try:
        run(config, on_ready=lambda address, directory: _announce(config, address, directory, as_json))
    except OSError as error:
        raise FencepostError(f"cannot serve on {config.listen}: {error.strerror or error}") from error
    if not as_json:
        click.echo("fencepost: stopped")


def _announce(config: ServerConfig, address: str, directory: Path, as_json: bool) -> None:
    from fencepost._version import __version__

    if as_json:
        ready = {"version": __version__, "address": address, "data": str(directory.resolve()), "pid": os.getpid()}
        click.echo(json.dumps(ready))
        return
    kept = "temporary" if config.data is None else f"--sync {config.sync}: {_SYNCED[config.sync]}"
    click.echo(f"fencepost {__version__} listening on {address}")
    click.echo(f"data in {directory.resolve()} ({kept})")


def _set_up_logging(verbose: int) -> None:
    import logging

    from fencepost.server.reporting import report_to_stderr

    report_to_stderr({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
