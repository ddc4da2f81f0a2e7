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

    def bytes(self, *words: str, stdin: bytes = b"") -> bytes:
        """What it writes into a pipe, as it is."""
        command = [sys.executable, "-m", "fencepost", *words]
        return subprocess.run(
            command, input=stdin, env=self.environment, stdout=subprocess.PIPE, check=True, timeout=60
        ).stdout

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
    assert shell("consume", name, "--group", f"g-{name}") == "3\n"
    assert shell("consume", name, "--group", f"g-{name}", "-p", "0", "-s", "committed") == ""
    assert "--member needs --group" in shell("consume", name, "--member", "one", code=2)


def test_what_is_wrong_is_said_in_one_line(shell: Shell, name: str) -> None:
    assert "no separator ':' between key and value" in shell("produce", name, "-k", ":", stdin="novalue\n", code=1)
    assert "--key-separator must not be empty" in shell("produce", name, "-k", "", stdin="a\n", code=2)
    assert "--json and --format cannot" in shell("consume", name, "--json", "-f", "%k", code=2)
    assert "line 1" in shell("produce", name, "--format", "json", stdin="{not json\n", code=1)
    assert "NAME=VALUE" in shell("produce", name, "-H", "x", stdin="a\n", code=2)
    assert "not a place" in shell("consume", name, "-s", "yesterday", code=2)
    assert "there is no topic" in shell("consume", f"{name}-missing", code=1)


BINARY = [b"\xff\x00\x80", b"", None, b"text", "\u00e9\u2028".encode(), b'{"base64": "AA=="}']


def test_json_that_was_consumed_is_produced_to_the_same_bytes(
    shell: Shell, fencepost_server: fencepost.Server, name: str
) -> None:
    """Also bytes that are no text, nothing at all, headers and times."""
    copy = f"{name}-copy"
    with fencepost.Producer(fencepost_server.address) as producer:
        for number, value in enumerate(BINARY):
            headers = [("h", value), ("h", b"again")]
            producer.send(name, value, key=value, headers=headers, timestamp=1_700_000_000_000 + number)
    shell("produce", copy, "--format", "json", stdin=shell("consume", name, "--json"))
    with fencepost.Reader(fencepost_server.address, [name, copy], stop="latest") as reader:
        records = list(reader)
    first, second = ([record for record in records if record.topic == topic] for topic in (name, copy))
    assert [record.value for record in second] == BINARY
    assert [(record.key, record.value, record.headers, record.timestamp) for record in second] == [
        (record.key, record.value, record.headers, record.timestamp) for record in first
    ]


def test_bytes_come_out_of_a_pipe_as_they_went_in(shell: Shell, name: str) -> None:
    data = bytes(range(11, 256)) + b"\n"
    shell.bytes("produce", name, "-k", "!", stdin=b"\xfe!" + data)
    assert shell.bytes("consume", name, "-f", "%k!%v") == b"\xfe!" + data
    assert shell.bytes("consume", name, "-f", "raw") == data.removesuffix(b"\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            '"timestamp": 1763424000',
            "`timestamp` must be milliseconds since 1970, and 1763424000 looks like seconds: multiply it by 1000",
        ),
        ('"timestamp": -5', "`timestamp` must be a non-negative integer, not -5"),
        ('"timestamp": "x"', '`timestamp` must be a non-negative integer, not "x"'),
        ('"partition": "x"', '`partition` must be a non-negative integer, not "x"'),
        ('"partition": true', "`partition` must be a non-negative integer, not true"),
        ('"timestamp": 9223372036854775808', "`timestamp` must be a non-negative integer, not 9223372036854775808"),
        ('"headers": 7', "`headers` must be an object or a list of [name, value] pairs"),
        ('"headers": [7]', "`headers` must be an object or a list of [name, value] pairs"),
        ('"key": {"base64": "?"}', "Only base64 data is allowed"),
    ],
)
def test_a_line_that_is_no_record_is_named_with_what_is_stored_before_it(
    shell: Shell, name: str, tmp_path: Path, line: str, why: str
) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"value": 1}\n{"value": 2}\n{"value": 3, ' + line + '}\n{"value": 4}\n')
    said = shell("produce", name, "--format", "json", str(file), code=1)
    assert said == f"fencepost: {file}, line 3: {why}; 2 records before it are stored\n"
    assert shell("consume", name) == "1\n2\n"


def test_a_record_that_is_too_large_is_named_and_may_be_allowed(shell: Shell, name: str) -> None:
    lines = "small\n" + "x" * 3000 + "\n"
    said = shell("produce", name, "-X", "max.request.size=2000", stdin=lines, code=1)
    assert said.startswith("fencepost: standard input, line 2: a record of about 3")
    assert said.endswith("; 1 record before it is stored\n")
    assert "-X max.request.size=N allows more" in said
    shell("produce", name, "-X", "max.request.size=4000", "-X", "linger.ms=1", stdin=lines)


def test_a_record_that_the_server_refuses_is_named_with_what_is_stored_before_it(shell: Shell, name: str) -> None:
    shell("topic", "create", name, "--set", "max.message.bytes=1000")
    said = shell("produce", name, stdin="small\n" + "x" * 3000 + "\n", code=1)
    assert "MESSAGE_TOO_LARGE" in said
    assert said.startswith("fencepost: standard input, line ")  # of the batch's first record: it is refused whole
    assert said.endswith(" stored\n")


def test_a_topic_that_cannot_be_is_refused_with_the_reason(shell: Shell) -> None:
    said = shell("produce", "bad name", stdin="a\n", code=1)
    assert "topic name 'bad name' may only have ASCII letters, digits, '.', '_' and '-'" in said
    assert said.endswith("; nothing is stored\n")


def test_a_closed_standard_input_is_said_in_one_line(shell: Shell, name: str) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m fencepost produce "$1" <&-', sys.executable, name],
        env=shell.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fencepost: standard input is closed; name files")


def test_whoever_reads_the_output_may_stop_reading(shell: Shell, name: str) -> None:
    shell("produce", name, stdin="".join(f"{number}\n" for number in range(100_000)))
    done = subprocess.run(
        ["bash", "-c", '"$0" -m fencepost consume "$1" | head -2; echo ${PIPESTATUS[0]}', sys.executable, name],
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("0\n1\n0\n", "")


def test_an_offset_that_is_not_there_yet_is_said(shell: Shell, name: str) -> None:
    shell("produce", name, stdin="1\n2\n")
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", "consume", name, "-s", "5000"],
        env=shell.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    assert done.stderr == f"fencepost: {name} has no records from offset 5000 on yet: it ends at 2 in partition 0\n"
    assert shell("consume", name, "-s", "2") == ""
