"""The command line: one module per command group, each thin over `fencepost.client` or `fencepost.server`.

A command's module is imported when the command is called, and its dependencies when it runs, so that short commands
start fast.
"""

from __future__ import annotations

import click

from fencepost._version import __version__
from fencepost.cli.errors import OneLineErrors


@click.group(cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="fencepost %(version)s")
def main() -> None:
    """A partitioned log with exactly-once writes, on Kafka's wire protocol.

    \b
    A first look, in two terminals:
      fencepost serve                          run a server on 127.0.0.1:9092, data in ./fencepost-data
      fencepost topic create orders -p 3       create a topic; then use any Kafka client, or
      seq 1000 | fencepost produce orders      send lines to it, each exactly once
      fencepost consume orders                 print its records

    All commands but `serve` and those under Keep also work with Apache Kafka: set --servers HOST:PORT,… or
    FENCEPOST_SERVERS.

    \b
    Exit codes: 0 success, 1 failure (one line on stderr says why), 2 usage error,
    75 ownership lost: another owner took over, or the server is gone (own), 130 interrupted.
    """


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      fencepost completion bash >> ~/.bashrc                                  bash 4.4 or newer
      fencepost completion zsh >> ~/.zshrc
      fencepost completion fish > ~/.config/fish/completions/fencepost.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root()
    # Not `.source()`: it checks the version of this machine's bash, and the script may be for another machine.
    how = found(root.command, {}, "fencepost", "_FENCEPOST_COMPLETE")
    click.echo(how.source_template % how.source_vars())


main.add_section("Getting started", "demo", "serve", "config", "certificate", "doctor", "debug", "ping", "completion")
main.add_section("Records", "produce", "consume", "copy", "migrate")
main.add_section(
    "Inspect and manage", "topic", "group", "producers:transactions", "transactions", "sink", "user", "acl", "quota"
)
main.add_section("Monitoring", "generate")
main.add_section("Keep", "backup", "restore:backup", "check:backup")
main.add_section("Ownership", "own", "owners:own")
