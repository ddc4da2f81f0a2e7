"""`fencepost own` as `flock`: who holds it, exit codes for busy, and a wrapper that alone is stopped (OWN-8)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.hold import hold
from tests.conftest import Engine
from tests.support.crash import ServerProcess
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

BUSY = 69
RUNS = "echo running; exec sleep 600"


def words(engine: Engine, *given: str) -> list[str]:
    return [sys.executable, "-m", "fencepost", "own", "--servers", engine.address, *given]


def run(engine: Engine, *given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words(engine, *given), capture_output=True, text=True, check=False, timeout=120)


@contextmanager
def started(engine: Engine, *given: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(words(engine, *given), stdout=pipe, stderr=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.send_signal(signal.SIGCONT)
            child.kill()


def line(stream: object) -> str:
    return stream.readline()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("how", [["--no-wait"], ["-n"], ["--wait", "0"]])
def test_it_does_not_wait_and_says_who_holds_it(engine: Engine, name: str, how: list[str]) -> None:
    with hold(engine.address, "jobs", [name], generation=1):
        busy = run(engine, "jobs", name, *how, "--", "echo", "run")
    assert (busy.returncode, busy.stdout) == (BUSY, "")
    [said] = busy.stderr.splitlines()
    assert said.startswith(f"fencepost: busy: {name} in jobs is held by ")
    assert re.search(rf"{os.uname().nodename}:{os.getpid()}\b.* since 20\d\d-", said), said
    free = run(engine, "jobs", name, *how, "--", "echo", "run")
    assert (free.returncode, free.stdout, free.stderr) == (0, "run\n", "")


def test_the_exit_code_for_busy_can_be_chosen_and_is_that_of_a_wait_that_is_over(engine: Engine, name: str) -> None:
    with hold(engine.address, "jobs", [name], generation=1):
        assert run(engine, "jobs", name, "-n", "-E", "7", "--", "true").returncode == 7
        over = run(engine, "jobs", name, "--wait", "0.2", "--conflict-exit-code", "8", "--", "true")
    assert over.returncode == 8
    waiting, busy = over.stderr.splitlines()
    assert waiting.startswith(f"fencepost: waiting: {name} in jobs is held by ")
    assert busy.startswith(f"fencepost: busy for 0.2 s: {name} in jobs is held by ")


def test_a_refused_take_over_names_the_holder(engine: Engine, name: str) -> None:
    with hold(engine.address, "jobs", [name], generation=1), hold(engine.address, "jobs", [name], generation=5):
        refused = run(engine, "jobs", name, "--generation", "4", "--", "true")
    assert refused.returncode == 1
    assert f"{name} in jobs is held by " in refused.stderr


def test_it_says_that_somebody_took_over_who_has_ended_since(engine: Engine, name: str) -> None:
    """What took over in a moment and is gone is the reason all the same."""
    with started(engine, "jobs", name, "--session", "60", "--", "sh", "-c", RUNS) as child:
        assert line(child.stdout) == "running\n"
        child.send_signal(signal.SIGSTOP)
        with hold(engine.address, "jobs", [name], generation=1):
            pass
        child.send_signal(signal.SIGCONT)
        assert child.wait(120) == 75
        said = line(child.stderr)
    assert said.startswith(f"fencepost: somebody else took over {name} in jobs and has ended since"), said


def test_a_wrapper_that_alone_is_stopped_does_not_let_the_command_run_on(engine: Engine, name: str) -> None:
    """Its session is over, and somebody else may hold it: a second process ends the command."""
    says_its_pid = "echo $$; exec sleep 600"
    with started(engine, "jobs", name, "--session", "2", "--grace", "1", "--", "sh", "-c", says_its_pid) as child:
        command = psutil.Process(int(line(child.stdout)))
        child.send_signal(signal.SIGSTOP)
        while command.is_running() and command.status() != psutil.STATUS_ZOMBIE:  # whose parent is stopped
            time.sleep(0.05)  # the test has its time limit
        child.send_signal(signal.SIGCONT)
        assert child.wait(120) == 75


def test_a_command_is_ended_when_no_heartbeat_is_answered_for_a_session(engine: Engine, name: str) -> None:
    """The link is silent, so only the clock tells that somebody else may own (OWN-8)."""
    with Proxy(engine.address) as proxy:
        behind = engine._replace(address=proxy.address)
        with started(behind, "jobs", name, "--session", "2", "--grace", "1", "--", "sh", "-c", RUNS) as child:
            assert line(child.stdout) == "running\n"
            proxy.silence()
            assert child.wait(60) == 75
            assert f"{name} in jobs is lost" in line(child.stderr)


def test_owners_are_told_apart_by_program_host_and_process(engine: Engine, name: str) -> None:
    with hold(engine.address, "jobs", [name], generation=1), fencepost.Admin(engine.address) as admin:
        [owner] = [row for row in admin.owners("jobs").owners if row.resource == name]
    assert f"{os.uname().nodename}:{os.getpid()}" in f"{owner.client_id} {owner.address}"


def test_the_server_logs_a_severed_owner_at_its_default_level(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        fencepost.Server(tmp_path / "data", sync="os", process=True) as server,
        hold(server.address, "jobs", ["it"], generation=1),
        hold(server.address, "jobs", ["it"], generation=1),
    ):
        pass
    logged = capfd.readouterr().err
    assert re.search(r"severed the owner .*fencepost:.*takes over it in group jobs", logged), logged


def test_a_holder_that_has_waited_for_its_claim_notices_a_server_that_hangs(tmp_path: Path) -> None:
    """The time that it would have waited is the claim's alone: otherwise closing would wait as long for an answer."""
    with ServerProcess(tmp_path) as server:
        server.start("os")
        server.await_ready()
        settings = replace(ClientSettings.of(server.address), request_timeout=1.0)
        with hold(settings, "jobs", ["it"], wait=3600) as held, server.paused():
            assert held.lost.wait(20)
