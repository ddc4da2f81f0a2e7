"""`fencepost debug`: one file with everything that helps to find a fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencepost.cli.http_get import DEFAULT_HTTP
from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.cli.debug_bundle import Collected

_ENDINGS = (".tar.gz", ".tgz")


@click.group()
def debug() -> None:
    """Collect what helps to find a fault.

    \b
    Examples:
      fencepost debug bundle fault.tar.gz
    """


@debug.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--http", "http_address", metavar="HOST:PORT", default=DEFAULT_HTTP, show_default=True,
    help="The server's HTTP port; https://HOST:PORT if it has TLS.",
)  # fmt: skip
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Data directory, on the server's machine [default: FENCEPOST_DATA or ./fencepost-data].",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, metavar="SECONDS",
    help="Time limit of each question to the server.",
)  # fmt: skip
@client_command
def bundle(target: ClusterTarget, file: Path, http_address: str, data: Path | None, timeout: float) -> None:
    """Write a bundle: configuration, metrics, log lines, stacks.

    It has no passwords, tokens, keys or records, but it has names of topics, users and hosts: look into it before you
    pass it on. With authorization enabled, log in as a super user (-X or --config: sasl.username, sasl.password).

    If the server's event loop hangs, the bundle has what can be known without it: on the server's machine, with --data,
    also the stack of every thread. The command then exits with 1.

    \b
    Examples:
      fencepost debug bundle fault.tar.gz
      fencepost debug bundle fault.tar.gz --data /var/lib/fencepost -X sasl.username=admin
    """
    from fencepost.cli.debug_bundle import collect, write
    from fencepost.cli.http_get import HttpServer

    if not file.name.endswith(_ENDINGS):
        raise click.UsageError(f"FILE must end in {' or '.join(_ENDINGS)}, not {file.name!r}")
    if file.exists():
        raise FencepostError(f"{file} exists already: choose another name")
    settings = target.settings()
    folder = data or Path(os.environ.get("FENCEPOST_DATA") or "fencepost-data")
    found = collect(settings, HttpServer(http_address, settings.security), folder, timeout)
    write(file, found)
    rows = ((each.name, "ok" if each.error is None else "missing", each.error or each.what) for each in found.parts)
    target.show(
        {"file": str(file), "parts": [{"name": e.name, "what": e.what, "error": e.error} for e in found.parts]},
        [Column("part"), Column("state"), Column("detail")],
        rows,
        empty="nothing was collected",
    )
    if not target.as_json:
        click.echo(f"\nwrote {file}")
    _judge(file, found)


def _judge(file: Path, found: Collected) -> None:
    if found.silence is not None:
        stacks = "with the stack of every thread" if found.has_stacks else "without stacks"
        raise FencepostError(f"{found.silence}; {file} has what is known without the server's help, {stacks}")
