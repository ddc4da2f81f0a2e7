"""`fencepost config`: check a server's configuration file, and let a running server read it again."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fencepost.cli.options import data_option
from fencepost.cli.output import show_json
from fencepost.errors import FencepostError


@click.group()
def config() -> None:
    """Check the configuration of a server, and reload it.

    \b
    Examples:
      fencepost config check server.toml
      fencepost config reload --data ./fencepost-data
    """


@config.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: Path, as_json: bool) -> None:
    """Check a configuration file, together with the environment.

    Prints every mistake with its line, and exits with 1 if there is one. FENCEPOST_… variables take precedence over the
    file, as they do for `fencepost serve`.

    \b
    Examples:
      fencepost config check server.toml
      fencepost config check server.toml --json
    """
    from fencepost.server.config.loading import Mistake, Sources, WrongConfiguration

    mistakes: list[Mistake] = []
    try:
        Sources(file, os.environ, {}).load()
    except WrongConfiguration as error:
        mistakes = error.mistakes
    if as_json:
        show_json({"file": str(file), "mistakes": [{"where": each.where, "text": each.text} for each in mistakes]})
    elif mistakes:
        for mistake in mistakes:
            click.echo(str(mistake), err=True)
    else:
        click.echo(f"{file} is right")
    if mistakes:
        raise SystemExit(1)


@config.command()
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reload(data: Path, as_json: bool) -> None:
    """Let a running server read its configuration file again.

    The server must run on this machine, with --config. It closes no connection. It prints which settings were applied,
    and which need a restart. If the new configuration has a mistake, the server keeps the old one as a whole, and this
    command exits with 1.

    \b
    Examples:
      fencepost config reload
      fencepost config reload --data /var/lib/fencepost --json
    """
    from fencepost.server.process.control import ask
    from fencepost.server.storage.datadir import serving_process

    if serving_process(data) is None:
        raise FencepostError(f"no server uses {data}: give the data directory of a running server (--data)")
    connection, outcome = ask(data, "reload")
    connection.close()
    if as_json:
        show_json(outcome)
    elif outcome["mistakes"]:
        for mistake in outcome["mistakes"]:
            click.echo(mistake, err=True)
    else:
        click.echo(f"applied: {', '.join(outcome['applied']) or 'nothing, because nothing has changed'}")
        if outcome["needs_restart"]:
            click.echo(f"these settings need a restart: {', '.join(outcome['needs_restart'])}")
    if outcome["mistakes"]:
        raise SystemExit(1)
