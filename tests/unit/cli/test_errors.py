"""An error is one line on stderr and an exit code, whatever went wrong."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner, Result

from fencepost.cli import main
from fencepost.cli.errors import FAILED, INTERRUPTED, MISUSED, OneLineErrors
from fencepost.errors import ConfigError, ErrorCode, ServerError

pytestmark = pytest.mark.unit


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, prog_name="fencepost")


def line_of(result: Result) -> str:
    """The one line on stderr; nothing is on stdout."""
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr.removesuffix("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topc"], "fencepost: No such command 'topc'"),
        (["topic", "create"], "fencepost: Missing argument 'NAME…'; see `fencepost topic create --help`"),
        (["ping", "--nope"], "fencepost: No such option"),
        (["topic", "create", "x", "-p", "0"], "fencepost: Invalid value for '-p'"),
        (["serve", "--data", "x", "--ephemeral"], "fencepost: --data and --ephemeral cannot be combined"),
        (["serve", "--sync", "maybe"], "fencepost: Invalid value for '--sync'"),
        (["ping", "--config", "no-such-file"], "fencepost: Invalid value for '--config'"),
    ],
)
def test_a_wrong_call_is_one_line_and_code_2(arguments: list[str], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == MISUSED
    assert line_of(result).startswith(expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ping", "-X", "nope=1"], "fencepost: unknown setting 'nope'"),
        (["ping", "-X", "bootstrap.server=1"], "did you mean 'bootstrap.servers'?"),
        (["ping", "--servers", "127.0.0.1:x"], "'127.0.0.1:x' is not an address"),
        (["ping", "-X", "security.protocol=TLS"], "security.protocol must be one of plaintext, ssl"),
        (["ping", "-X", "sasl.username=me"], "sasl.username has no effect with security.protocol=PLAINTEXT"),
        (["topic", "alter", "x"], "nothing to change: give --partitions, --set or --unset"),
        (["topic", "create", "x", "--set", "y"], "--set takes NAME=VALUE, not 'y'"),
        (["group", "reset", "g", "--topic", "t", "--to", "soon"], "--to soon: expected earliest, latest"),
        (["serve", "--ephemeral", "--listen", "0.0.0.0:0"], "refusing to listen on 0.0.0.0"),
        (["serve", "--ephemeral", "-X", "nope=1"], "unknown setting 'nope'"),
        (["serve", "--ephemeral", "--listen", "here"], "address must be HOST:PORT, not 'here'"),
        (["copy", "a", "a"], "source and target are the same topic"),
        (["copy", "a", "127.0.0.1:1/"], "'127.0.0.1:1/' names no topic"),
    ],
)
def test_a_setting_that_cannot_be_is_a_wrong_call_too(arguments: list[str], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == MISUSED
    assert expected in line_of(result)


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (ConfigError("no such setting"), "fencepost: no such setting", MISUSED),
        (ServerError(ErrorCode.INVALID_CONFIG, "first\n  second"), "fencepost: INVALID_CONFIG: first second", MISUSED),
        (ServerError(ErrorCode.INVALID_PARTITIONS, "none"), "fencepost: INVALID_PARTITIONS: none", FAILED),
        (PermissionError(13, "Permission denied", "/data"), "fencepost: /data: Permission denied", FAILED),
        (BrokenPipeError(32, "Broken pipe"), "fencepost: connection closed: [Errno 32] Broken pipe", FAILED),
        (KeyboardInterrupt(), "fencepost: interrupted", INTERRUPTED),
        (KeyError("bug"), "fencepost: internal error, please report it: KeyError: 'bug'", FAILED),
    ],
)
def test_no_exception_ends_in_a_traceback(error: BaseException, line: str, code: int) -> None:
    @click.group(cls=OneLineErrors)
    def root() -> None: ...

    @root.command()
    def fail() -> None:
        raise error

    result = CliRunner().invoke(root, ["fail"])
    assert result.exit_code == code
    # click itself ends the line that the terminal shows ^C in.
    assert result.stderr.lstrip("\n") == line + "\n"


def test_the_traceback_is_there_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_DEBUG", "1")
    assert "Traceback" in run("ping", "-X", "nope=1").stderr


def test_a_reader_that_leaves_early_causes_no_complaint() -> None:
    """`fencepost … | head -1`"""
    piped = f"{sys.executable} -m fencepost --help | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", piped], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_a_setting_from_the_environment_counts_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_SERVERS", "nowhere:x")
    result = run("ping")
    assert result.exit_code == MISUSED
    assert "'nowhere:x' is not an address" in line_of(result)


def test_a_command_that_fails_is_one_line_and_code_1() -> None:
    result = run("ping", "--servers", "127.0.0.1:1")
    assert result.exit_code == FAILED
    assert "nothing listens at 127.0.0.1:1" in line_of(result)
    assert line_of(result).rstrip().endswith("or name another one (--servers, FENCEPOST_SERVERS)")
