"""`serve --log-format json`: what a real server process writes to stderr."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

SERVE = [sys.executable, "-m", "fencepost", "serve", "--ephemeral", "--listen", "127.0.0.1:0", "--no-http", "--json"]


def test_a_process_writes_one_object_per_line() -> None:
    command = [*SERVE, "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, _, port = json.loads(process.stdout.readline())["address"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            name = f"{host}:{stranger.getsockname()[1]}"
            assert stranger.recv(100) == b""
        process.terminate()
        _, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.splitlines()]
    [closed] = [line for line in lines if line["event"] == "connection.closed"]
    assert (closed["peer"], closed["level"]) == (name, "warning")
    assert closed["reason"] in closed["message"]
    lived = [line for line in lines if line["event"].startswith("server.")]
    assert [line["event"] for line in lived] == ["server.started", "server.listening", "server.stopped"]
    assert (lived[0]["process"], lived[1]["address"]) == (process.pid, f"{host}:{port}")


def test_another_format_is_refused() -> None:
    refused = subprocess.run([*SERVE, "-X", "log_format=yaml"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "log_format must be 'text' or 'json', not 'yaml'" in refused.stderr
