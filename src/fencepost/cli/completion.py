"""`fencepost completion`: completion of commands and options in the shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_FENCEPOST_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      fencepost completion bash >> ~/.bashrc                                  bash 4.4 or newer
      fencepost completion zsh >> ~/.zshrc
      fencepost completion fish > ~/.config/fish/completions/fencepost.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root()
    # Not `.source()`: it checks the version of this machine's bash, and the script may be for another machine.
    how = found(root.command, {}, "fencepost", _VARIABLE)
    click.echo(how.source_template % how.source_vars())
