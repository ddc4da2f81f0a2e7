"""`fencepost produce --own` and `fencepost consume --own`: owners for as long as the command runs (OWN-1, OWN-9)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import fencepost
from tests.integration.conftest import TestedServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def guarded(ours: TestedServer, name: str) -> str:
    with fencepost.Admin(ours.address) as admin:
        guards = {"fencepost.writer.group": name, "fencepost.reader.group": f"r-{name}"}
        admin.create_topic(name, 2, configs=guards)
    return name


@contextmanager
def started(server: TestedServer, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "fencepost", *words],
        env={**os.environ, "FENCEPOST_SERVERS": server.address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(server: TestedServer, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    with started(server, *words) as process:
        out, err = process.communicate(stdin, timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def owned(server: TestedServer, group: str) -> list[str]:
    with fencepost.Admin(server.address) as admin:
        return sorted(row.resource for row in admin.owners(group).owners)


def wait_until_owned(server: TestedServer, group: str, *names: str) -> None:
    while owned(server, group) != sorted(names):
        time.sleep(0.01)  # another process has to come so far; the test has its time limit


def test_a_guarded_topic_is_written_and_read_by_those_who_own_it(ours: TestedServer, guarded: str) -> None:
    refused = run(ours, "produce", guarded, stdin="1\n")
    assert refused.returncode == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in refused.stderr
    lines = "".join(f"key-{number}:{number}\n" for number in range(20))
    sent = run(ours, "produce", guarded, "--own", guarded, "-k", ":", stdin=lines)
    assert (sent.returncode, sent.stderr) == (0, "")
    read = run(ours, "consume", guarded, "--own", f"r-{guarded}", "--group", guarded)
    assert sorted(map(int, read.stdout.split())) == list(range(20))
    assert run(ours, "consume", guarded).returncode == 1
    assert owned(ours, guarded) == [], "it ended, and what it owned is free"


def test_a_producer_that_waits_for_its_input_ends_when_somebody_takes_over(ours: TestedServer, guarded: str) -> None:
    with (
        started(ours, "produce", guarded, "--own", guarded, "-p", "1") as process,
        fencepost.Producer(ours.address) as other,
    ):
        assert process.stdin is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        wait_until_owned(ours, guarded, f"{guarded}-1")
        with fencepost.Admin(ours.address) as admin:
            while not admin.latest(guarded)[1]:
                time.sleep(0.01)  # else the record is in doubt, and the command tells what became of it
        other.own(guarded, [f"{guarded}-1"], generation=1)
        assert process.wait(60) == 75
        assert process.stderr is not None
        said = process.stderr.read()
        assert said.startswith(f"fencepost: {guarded}-1: somebody else has taken over"), said
        assert said.count("\n") == 1, said


def test_a_reader_that_waits_for_records_ends_when_somebody_takes_over(ours: TestedServer, guarded: str) -> None:
    with (
        started(ours, "consume", guarded, "--own", f"r-{guarded}", "-F") as process,
        fencepost.Producer(ours.address) as other,
    ):
        wait_until_owned(ours, f"r-{guarded}", f"{guarded}-0", f"{guarded}-1")
        other.own(f"r-{guarded}", [f"{guarded}-0"], generation=1)
        assert process.wait(60) == 75


def test_a_generation_takes_over_at_once_and_belongs_to_own(ours: TestedServer, guarded: str) -> None:
    with fencepost.Producer(ours.address) as other:
        claim = other.own(guarded, [f"{guarded}-0"], generation=1)
        sent = run(ours, "produce", guarded, "--own", guarded, "--generation", "1", stdin="1\n")
        assert (sent.returncode, sent.stderr) == (0, "")
        assert claim.lost.wait(60)
    assert run(ours, "produce", guarded, "--generation", "1").returncode == 2
    missing = run(ours, "produce", guarded, "--own", guarded, "-p", "7")
    assert missing.returncode == 2
    assert f"{guarded} has no partition 7" in missing.stderr
