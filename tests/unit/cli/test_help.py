"""The command line explains itself, quickly, and the documentation says the same."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fencepost import __version__
from fencepost.cli import main

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"

# (path, command) of every command that does something.
Leaf = tuple[tuple[str, ...], click.Command]


def leaves(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    if isinstance(command, click.Group):
        for name, sub in sorted(command.commands.items()):
            yield from leaves(sub, (*path, name))
    else:
        yield path, command


LEAVES = list(leaves())
every_command = pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])


@every_command
def test_every_command_and_option_says_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="fencepost")
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: fencepost {' '.join(path)} [OPTIONS]")
    assert command.help
    for option in command.params:
        assert not isinstance(option, click.Option) or option.help, option


@every_command
def test_every_client_command_takes_the_common_options(path: tuple[str, ...], command: click.Command) -> None:
    if path == ("serve",):
        return
    options = {name for option in command.params for name in option.opts}
    assert {"--servers", "--config", "-X", "--json"} <= options


@every_command
def test_every_command_and_option_is_in_the_documentation(path: tuple[str, ...], command: click.Command) -> None:
    sections = re.split(r"^#+ ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    heading = f"`fencepost {' '.join(path)}"
    section = next((section for section in sections if section.startswith(heading)), None)
    assert section is not None, f"docs/cli.md has no section {heading}…`"
    common = next(section for section in sections if section.startswith("What every client command takes"))
    for option in command.params:
        if isinstance(option, click.Option):
            text = section if option.name not in {"servers", "config", "options", "as_json"} else section + common
            assert all(name in text for name in option.opts), f"{heading}: {option.opts} is not documented"


def test_the_first_page_shows_a_first_look() -> None:
    result = CliRunner().invoke(main, ["--help"], prog_name="fencepost")
    assert result.exit_code == 0
    assert "fencepost serve" in result.output
    assert all(path[0] in result.output for path, _ in LEAVES)


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"fencepost {__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    program = """
import sys
from fencepost.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0, end.code
heavy = {"kio", "uvloop", "pyarrow", "asyncio", "rich", "sqlite3"}
heavy |= {"fencepost.server", "fencepost.client", "fencepost.wire", "fencepost.kernel"}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
