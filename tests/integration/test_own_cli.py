"""`fencepost own` and `fencepost owners`, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

import fencepost
from fencepost.client.own.hold import hold
from fencepost.core.own.claim_request import Refused
from fencepost.errors import TimedOut
from tests.conftest import Engine

pytestmark = pytest.mark.integration


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fencepost", *words]


def environment(server: Engine) -> dict[str, str]:
    return {**os.environ, "FENCEPOST_SERVERS": server.address}


def test_the_command_runs_while_owning_and_its_exit_code_is_handed_on(engine: Engine, name: str) -> None:
    script = "import os; print(os.environ['FENCEPOST_TOKEN'], os.environ['FENCEPOST_GENERATION']); raise SystemExit(7)"
    done = subprocess.run(
        command("own", "jobs", name, "--", sys.executable, "-c", script),
        env=environment(engine),
        capture_output=True,
        text=True,
        check=False,
    )
    token, generation = done.stdout.split()
    assert (done.returncode, generation) == (7, "1")
    assert int(token) > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs", ""], "a resource's name must have 1 to 1000 characters, not 0"),
        (["", "it"], "group must have 1 to 1000 characters, not 0"),
        (["jobs", "it", "it"], "resource 'it' is named more than once"),
        (["jobs", "it", "it", "--generation", "1"], "resource 'it' is named more than once"),
        (["jobs", "a", "b", "--generation", "a=1"], "Invalid value for --generation: no generation for b"),
        (["jobs", "a", "--generation", "b=1"], "Invalid value for --generation: 'b' is not one of the resources"),
        (["jobs", "a", "--generation", "-1"], "Invalid value for --generation: '-1' is neither N nor RESOURCE=N"),
    ],
)
def test_what_cannot_be_owned_is_said_in_one_line_and_nothing_is_run(arguments: list[str], said: str) -> None:
    done = subprocess.run(command("own", *arguments, "--", "echo", "run"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"fencepost: {said}; see `python -m fencepost own --help`\n"


def test_a_generation_for_each_resource_is_given_and_found_in_the_environment(engine: Engine, name: str) -> None:
    """OWN-1; a name may have a `=` in it."""
    script = "import os; print(os.environ['FENCEPOST_GENERATIONS']); print(os.environ['FENCEPOST_TOKENS'])"
    first, second = f"{name}=1", name
    with hold(engine.address, "jobs", [first], generation=1):
        done = subprocess.run(
            command(
                "own",
                "jobs",
                first,
                second,
                "--generation",
                f"{first}=5",
                "--generation",
                f"{second}=1",
                "--",
                sys.executable,
                "-c",
                script,
            ),
            env=environment(engine),
            capture_output=True,
            text=True,
            check=True,
        )
    generations, tokens = map(json.loads, done.stdout.splitlines())
    assert generations == {first: 5, second: 1}
    assert list(tokens) == [first, second]


def test_without_a_command_it_is_one_line_that_says_what_is_missing(engine: Engine) -> None:
    done = subprocess.run(
        command("own", "jobs", "x"), env=environment(engine), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "after `--`" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_refused_claim_names_the_generation_and_a_wait_that_is_over_says_so(engine: Engine, name: str) -> None:
    server = engine.address
    with hold(server, "g", [name], generation=1), hold(server, "g", [name], generation=5) as held:
        with pytest.raises(Refused) as refused:
            hold(server, "g", [name], generation=4)
        assert refused.value.current_generation == held.generation == 5
        with pytest.raises(TimedOut):
            hold(server, "g", [name], wait=0.05)


def test_a_waiting_holder_gets_it_when_the_other_lets_go(engine: Engine, name: str) -> None:
    got = threading.Event()

    def wait_for_it() -> None:
        with hold(engine.address, "g", [name], wait=60):
            got.set()

    first = hold(engine.address, "g", [name], generation=1)
    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    first.close()
    assert got.wait(60)
    waiter.join()


def test_a_claim_without_generation_or_wait_is_refused_at_the_call(engine: Engine) -> None:
    with pytest.raises(ValueError, match="generation=N"):
        hold(engine.address, "g", ["x"])
    with pytest.raises(TypeError, match="list of names"):
        hold(engine.address, "g", "x", generation=1)


def test_an_outdated_token_is_called_that_and_the_newest_is_named(engine: Engine, name: str) -> None:
    with hold(engine.address, "jobs", [name], generation=0) as held:
        newest = held.token
    done = subprocess.run(
        command("own", "jobs", name, "--after", "0", "--", "echo", "run"),
        env=environment(engine),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == f"fencepost: {name} in jobs has had another owner since token 0: its newest token is {newest}\n"
    )


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--wait", "-1", "-1.0 is not in the range x>=0"), ("--session", "-1", "-1.0 is not in the range x>=0"),
     ("--after", "-1", "-1 is not in the range x>=0"), ("--json", "--json", "No such option")],
)  # fmt: skip
def test_values_that_cannot_be_are_refused_in_the_words_of_the_command_line(option: str, value: str, said: str) -> None:
    done = subprocess.run(
        command("own", "jobs", "it", option, value, "--", "true"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["no-such-command"], 127, "no-such-command: no such command"),
        (["/"], 126, "/ cannot be run: Permission denied"),
    ],
)
def test_a_command_that_cannot_be_run_is_said_as_a_shell_says_it(
    engine: Engine, name: str, words: list[str], code: int, said: str
) -> None:
    done = subprocess.run(
        command("own", "jobs", name, "--", *words),
        env=environment(engine),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, f"fencepost: {said}\n")


def test_a_holder_notices_the_end_of_its_connection_before_its_next_heartbeat(
    fencepost_server: fencepost.Server, name: str
) -> None:
    an_hour = 3600.0  # so the next sign of life is a quarter of that away
    with (
        hold(fencepost_server.address, "g", [name], generation=1, session=an_hour) as first,
        hold(fencepost_server.address, "g", [name], generation=1),
    ):
        assert first.lost.wait(60)
