"""`fencepost produce` and `fencepost consume`, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost

pytestmark = pytest.mark.integration


class Shell:
    def __init__(self, server: fencepost.Server) -> None:
        self.environment = {**os.environ, "FENCEPOST_SERVERS": server.address}

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fencepost", *words],
            input=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        if code:
            assert len(done.stderr.splitlines()) == 1, done.stderr
        return done.stdout if code == 0 else done.stderr


@pytest.fixture
def shell(fencepost_server: fencepost.Server) -> Shell:
    return Shell(fencepost_server)


def test_lines_go_in_and_come_out_in_order(shell: Shell, name: str) -> None:
    lines = "".join(f"{number}\n" for number in range(1000))
    assert shell("produce", name, stdin=lines).startswith("1,000 records")
    assert shell("consume", name) == lines


def test_keys_headers_and_templates(shell: Shell, name: str) -> None:
    shell("produce", name, "-k", ":", "-H", "origin=test", stdin="a:one\nb:two\n")
    shown = shell("consume", name, "-f", "%p:%o %k=%v [%h] 100%%")
    assert shown == "0:0 a=one [origin=test] 100%\n0:1 b=two [origin=test] 100%\n"


def test_json_in_and_out(shell: Shell, name: str) -> None:
    rows = [{"key": "k", "value": "v", "headers": {"h": "x"}, "timestamp": 1_700_000_000_000}, {"value": {"n": 1}}]
    shell("produce", name, "--format", "json", stdin="".join(json.dumps(row) + "\n" for row in rows))
    first, second = (json.loads(line) for line in shell("consume", name, "--json").splitlines())
    assert (first["key"], first["value"], first["headers"], first["timestamp"]) == (
        "k", "v", [["h", "x"]], 1_700_000_000_000,
    )  # fmt: skip
    assert (second["key"], second["value"], second["offset"]) == (None, '{"n":1}', 1)


def test_files_whole_or_by_line_compressed(shell: Shell, name: str, tmp_path: Path) -> None:
    file = tmp_path / "two.txt"
    file.write_text("one\ntwo\n")
    shell("produce", name, str(file), "-z", "lz4")
    shell("produce", name, str(file), "--format", "whole")
    assert shell("consume", name) == "one\ntwo\none\ntwo\n\n"
    assert shell("consume", name, "-s", "1", "-c", "1") == "two\n"


def test_a_group_goes_on_where_it_stopped(shell: Shell, name: str) -> None:
    shell("produce", name, stdin="1\n2\n3\n")
    assert shell("consume", name, "--group", f"g-{name}", "-c", "2") == "1\n2\n"
    assert shell("consume", name, "--group", f"g-{name}", "-s", "committed") == "3\n"


def test_what_is_wrong_is_said_in_one_line(shell: Shell, name: str) -> None:
    assert "no ':' between key and value" in shell("produce", name, "-k", ":", stdin="novalue\n", code=1)
    assert "line 1" in shell("produce", name, "--format", "json", stdin="{not json\n", code=1)
    assert "NAME=VALUE" in shell("produce", name, "-H", "x", stdin="a\n", code=2)
    assert "no place" in shell("consume", name, "-s", "yesterday", code=2)
    assert "there is no topic" in shell("consume", f"{name}-missing", code=1)
