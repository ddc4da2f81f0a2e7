"""`fencepost user`: the users of a server with logins, by AlterUserScramCredentials or in a data directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fencepost.cli.options import ClusterTarget, client_command, confirm, yes_option
from fencepost.cli.output import Column, is_terminal
from fencepost.errors import ConfigError

_data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Instead of a server: its data directory, while no server uses it.",
)


@click.group()
def user() -> None:
    """Add, list and remove the users who may log in.

    Users log in by SCRAM or PLAIN. Works with a fencepost server and with Apache Kafka. With --data it works on the
    data directory of a fencepost server that does not run, for example to add the first user.

    \b
    Examples:
      fencepost user add admin --data ./fencepost-data
      fencepost user list --servers 127.0.0.1:9092 --config admin.properties
      fencepost user remove alice
    """


@user.command()
@click.argument("name")
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="File with the password in its first line; - for standard input [default: ask at the terminal].",
)
@click.option(
    "--iterations", type=click.IntRange(4096, 16384), default=4096, show_default=True, help="Iterations of the hash."
)
@_data_option
@client_command
def add(target: ClusterTarget, *, name: str, password_file: Path | None, iterations: int, data: Path | None) -> None:
    """Add a user, or change a user's password.

    There is no option for the password itself: other processes could read it from the command line. The server gets a
    salted hash per mechanism (SCRAM-SHA-256 and SCRAM-SHA-512), never the password.

    \b
    Examples:
      fencepost user add admin --data ./fencepost-data
      fencepost user add alice --password-file alice.secret
    """
    from fencepost.core.security.credentials import check_user_name

    check_user_name(name)
    password = _read_password(name, password_file)
    if data is not None:
        from fencepost.server.security.users import set_password

        set_password(data, name, password, iterations)
    else:
        with target.admin() as admin:
            admin.set_user_password(name, password, iterations=iterations)
    target.done(f"added user {name}", {"added": name})


@user.command("list")
@_data_option
@client_command
def list_users(target: ClusterTarget, data: Path | None) -> None:
    """List users with their mechanisms.

    \b
    Examples:
      fencepost user list
      fencepost user list --data ./fencepost-data --json
    """
    if data is not None:
        from fencepost.server.security.users import read_users

        found = read_users(data)
    else:
        with target.admin() as admin:
            found = admin.users()
    rows = ((name, mechanism, iterations) for name, known in found.items() for mechanism, iterations in known.items())
    columns = [Column("user"), Column("mechanism"), Column("iterations", True)]
    target.show(found, columns, rows, empty="no users")


@user.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@yes_option
@_data_option
@client_command
def remove(target: ClusterTarget, *, names: tuple[str, ...], yes: bool, data: Path | None) -> None:
    """Remove users. Their open connections stay, until their login ends.

    Asks for confirmation at a terminal.

    \b
    Examples:
      fencepost user remove alice
      fencepost user remove alice bob --yes --data ./fencepost-data
    """
    confirm(f"remove {', '.join(names)}?", yes)
    if data is not None:
        from fencepost.server.security.users import remove_users

        remove_users(data, names)
    else:
        with target.admin() as admin:
            admin.remove_users(names)
    target.done(f"removed {', '.join(names)}", {"removed": names})


def _read_password(name: str, file: Path | None) -> str:
    """Return the password from the file, or ask for it twice at the terminal."""
    if file is None:
        if not is_terminal(sys.stdin):
            raise ConfigError("there is no terminal to ask for the password: use --password-file FILE, or - for stdin")
        password: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    else:
        try:
            with click.open_file(str(file), encoding="utf-8") as opened:
                password = opened.readline().rstrip("\r\n")
        except OSError as error:
            raise ConfigError(f"cannot read the password from {file}: {error.strerror or error}") from error
    if not password:
        raise ConfigError("the password must not be empty")
    return password
