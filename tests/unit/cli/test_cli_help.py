"""The command line explains itself, quickly, and the documentation says the same."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fencepost import __version__
from fencepost.cli import errors, main
from fencepost.cli.own import FENCED

pytestmark = pytest.mark.unit

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"

WITHOUT_SERVER = {
    "serve", "demo", "completion", "config", "certificate", "generate", "backup", "restore", "check",
}  # fmt: skip
"""Commands that ask no server."""

# (path, command) of every command that does something.
Leaf = tuple[tuple[str, ...], click.Command]


def leaves(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            assert sub is not None, name
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
    if path[0] in WITHOUT_SERVER:
        return
    options = {name for option in command.params for name in option.opts}
    assert {"--servers", "--config", "-X"} <= options


@every_command
def test_every_command_has_examples_that_it_would_accept(path: tuple[str, ...], command: click.Command) -> None:
    shown = re.findall(r"^ *(.*\bfencepost .*)$", (command.help or "").partition("Examples:")[2], re.MULTILINE)
    assert shown, f"fencepost {' '.join(path)} --help has no example"
    for line in shown:
        example = re.split(r" \| | >+ |; do ", line[line.index("fencepost ") :])[0]
        words = shlex.split(re.split(r" {3,}", example)[0])[1:]
        assert tuple(words[: len(path)]) == path, line
        rest = [str(DOCUMENT) if word.endswith((".txt", ".log")) else word for word in words[len(path) :]]
        command.make_context(path[-1], rest)  # raises UsageError for what it does not know


@every_command
def test_every_command_that_prints_data_prints_it_as_json_too(path: tuple[str, ...], command: click.Command) -> None:
    # One prints a script, and what the other runs prints what it likes.
    assert any("--json" in option.opts for option in command.params) is (
        path not in {("completion",), ("own",)} and path[0] != "generate"  # these print files
    )


@pytest.mark.parametrize(
    "path", [(), *sorted({path[:-1] for path, _ in LEAVES if len(path) > 1})], ids=lambda path: " ".join(path) or "root"
)
def test_no_line_of_a_list_of_commands_is_cut_off(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="fencepost", terminal_width=80)
    assert result.exit_code == 0
    assert not re.search(r"\.\.\.$", result.output.partition("Options:")[2], re.MULTILINE), result.output


@pytest.mark.parametrize("path", [(), ("topic",)])
def test_without_a_command_the_page_is_shown_and_not_one_long_line(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, path, prog_name="fencepost")
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: fencepost")
    assert result.stderr.count("\n") > 10


def test_the_exit_codes_are_on_the_first_page_and_in_the_documentation() -> None:
    page = CliRunner().invoke(main, ["--help"], prog_name="fencepost").output
    for code in (errors.FAILED, errors.MISUSED, FENCED, errors.INTERRUPTED):
        assert re.search(rf"\b{code}\b", page.partition("Exit codes:")[2])
        assert f"| {code} |" in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    script = CliRunner().invoke(main, ["completion", shell], prog_name="fencepost")
    assert script.exit_code == 0
    assert "_FENCEPOST_COMPLETE=" in script.output
    words = {"COMP_WORDS": "fencepost top", "COMP_CWORD": "top" if shell == "fish" else "1"}
    asked = CliRunner().invoke(
        main, [], prog_name="fencepost", env={"_FENCEPOST_COMPLETE": f"{shell}_complete", **words}
    )
    assert "topic" in asked.output


@every_command
def test_every_command_and_option_is_in_the_documentation(path: tuple[str, ...], command: click.Command) -> None:
    sections = re.split(r"^#+ ", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    heading = f"`fencepost {' '.join(path)}"
    section = next((section for section in sections if section.startswith(heading)), None)
    assert section is not None, f"docs/cli.md has no section {heading}…`"
    common = next(section for section in sections if section.startswith("Options of every client command"))
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
