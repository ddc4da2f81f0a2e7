"""`fencepost serve`: the embedded server in the foreground."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencepost.cli.options import pairs
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.server.config.loading import Sources
    from fencepost.server.config.settings import ServerConfig
    from fencepost.server.server import Ready

logger = logging.getLogger(__name__)

_HTTP = "127.0.0.1:9644"
_SYNCED = {
    "always": "an acknowledged record is on the disk",
    "os": "an acknowledged record survives kill -9 of the server, not a power failure",
}


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file of settings; flags and FENCEPOST_… variables take precedence.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory of the log [default: ./fencepost-data].",
)
@click.option("--ephemeral", is_flag=True, help="Use a temporary directory and remove it at the end.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address to listen on; port 0 takes a free one [default: 127.0.0.1:9092].",
)
@click.option(
    "--advertise", metavar="HOST:PORT", help="Address that clients connect to [default: the one they dialled]."
)
@click.option(
    "--sync",
    type=click.Choice(["always", "os"]),
    help="Acknowledge a record when it is on the disk [default: always], or (os) in the page cache, as Kafka does.",
)
@click.option("--insecure", is_flag=True, default=None, help="Allow listening beyond loopback, without authentication.")
@click.option(
    "--default-partitions",
    "--partitions",
    type=click.IntRange(min=1),
    help="Partitions of topics that are created on first use [default: 1].",
)
@click.option(
    "--auto-create-topics/--no-auto-create-topics",
    "--auto-create/--no-auto-create",
    default=None,
    help="Create topics on first use [default: create].",
)
@click.option(
    "--http",
    "http_address",
    metavar="HOST:PORT",
    help=f"Address of the console, health and metrics [default: {_HTTP}, unless that port is taken].",
)
@click.option("--no-http", is_flag=True, help="No console, health and metrics over HTTP.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Form of the log on stderr: sentences [default], or one JSON object per line.",
)
@click.option("-X", "options", multiple=True, metavar="NAME=VALUE", help="A further setting; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the address and the data directory as one line of JSON.")
@click.option("-v", "--verbose", count=True, help="Log more; -vv logs everything.")
def serve(
    *,
    file: Path | None,
    ephemeral: bool,
    no_http: bool,
    options: tuple[str, ...],
    as_json: bool,
    verbose: int,
    **flags: object,
) -> None:
    """Run a server that any Kafka client can use.

    Once it is ready it prints its address and its data directory. SIGTERM and Ctrl-C finish the requests that have
    begun, and stop it. The next start resumes with the same data, also after kill -9. With --config, SIGHUP reloads the
    file (see `fencepost config reload`). Under systemd it reports readiness, reloads and signs of life.

    \b
    Examples:
      fencepost serve                                        for this machine, data in ./fencepost-data
      fencepost serve --ephemeral --listen 127.0.0.1:0       for a test: any free port, temporary data
      fencepost serve --listen 0.0.0.0:9092 --insecure       for a trusted network
      fencepost serve --sync os --partitions 4 -X connection_idle_ms=60000
      fencepost serve --config server.toml                   named listeners and further settings from a file
    """
    from fencepost.server.config.loading import Sources

    given = {name: value for name, value in flags.items() if value is not None}
    if verbose:
        given["log_level"] = "info" if verbose == 1 else "debug"
    sources = Sources(file, os.environ, {**given, **pairs(options, "-X")})
    if no_http and "http_address" in given:
        raise click.UsageError("--http and --no-http cannot be combined")

    def load() -> ServerConfig:
        config = _load(sources, ephemeral)
        if no_http:
            return replace(config, http_address=None)
        return config if config.http_address is not None else replace(config, http_address=_HTTP)

    config = load()
    _set_up_logging(config)
    for sentence in sources.misspelled_variables():
        logger.warning("%s", sentence)
    from fencepost.server.process.systemd import Systemd
    from fencepost.server.server import run

    try:
        run(
            config,
            on_ready=lambda where: announce(config, where, as_json),
            load=None if file is None else load,
            may_go_without_http=config.http_address == _HTTP,
            systemd=Systemd.of(os.environ),
        )
    except OSError as error:
        where = ", ".join(listener.address for listener in config.endpoints)
        raise FencepostError(f"cannot serve on {where}: {error.strerror or error}") from error
    if not as_json:
        _say("fencepost: stopped")


def _load(sources: Sources, ephemeral: bool) -> ServerConfig:
    config = sources.load()
    if not ephemeral:
        return config if config.data is not None else replace(config, data=Path("fencepost-data"))
    if "data" in sources.flags:
        raise click.UsageError("--data and --ephemeral cannot be combined")
    return replace(config, data=None)


def announce(config: ServerConfig, where: Ready, as_json: bool) -> None:
    from fencepost._version import __version__

    if as_json:
        ready = {
            "version": __version__,
            "address": next(iter(where.addresses.values())),
            "listeners": dict(where.addresses),
            "data": str(where.data.resolve()),
            "http": where.http,
            "pid": os.getpid(),
        }
        _say(json.dumps(ready))
        return
    kept = "temporary" if config.data is None else f"--sync {config.sync}: {_SYNCED[config.sync]}"
    for listener in config.endpoints:
        named = f" ({listener.name}: {listener.protocol})" if config.listeners else ""
        _say(f"fencepost {__version__} listening on {where.addresses[listener.name]}{named}")
    _say(f"data in {where.data.resolve()} ({kept})")
    if where.http is not None:
        from fencepost.server.http.console.assets import are_installed

        if are_installed():
            _say(f"console, health and metrics on {where.http}")
        else:
            _say(f"health and metrics on {where.http} (no console: its libraries were not there at the build)")


def _say(line: str) -> None:
    """Print a line. A pipe that nobody reads, or a full disk behind stdout, does not stop a server."""
    try:
        click.echo(line)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - flushed at exit


def _set_up_logging(config: ServerConfig) -> None:
    from fencepost.server.process.reporting import report_to_stderr

    report_to_stderr(getattr(logging, config.log_level.upper()), as_json=config.log_format == "json")
