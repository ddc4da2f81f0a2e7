"""The command line with a wrong address: one clear line, at once, whatever the command: nothing waits for 120 s."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.process import free_port

pytestmark = pytest.mark.integration

COMMANDS = {
    "produce": ["produce", "orders"],
    "consume": ["consume", "orders"],
    "topic": ["topic", "list"],
    "producers": ["producers", "orders"],
    "own": ["own", "jobs", "nightly", "--", "true"],
    "owners": ["owners"],
    "group": ["group", "list"],
    "transactions": ["transactions", "list"],
    "sink": ["sink", "list"],
    "ping": ["ping"],
    "copy": ["copy", "orders", "orders-copy"],
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_wrong_port_is_one_line_at_once(command: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", *_with_servers(COMMANDS[command], address)],
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        timeout=60,  # where the records' own time is 120 s
        check=False,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"nothing listens at {address}" in line
    assert "--servers" in line


def test_a_wrong_host_is_one_line_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "fencepost", "produce", "orders", "--servers", "no-such-host.invalid:9092"],
        input="one\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "the host of no-such-host.invalid:9092 is unknown" in line


def _with_servers(arguments: list[str], address: str) -> list[str]:
    """Before `--`, behind which is the command that `own` runs."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:at], "--servers", address, *arguments[at:]]
