"""Examples that own something and have nothing to do: stopped, replaced and woken, each hears of it and ends (OWN-10).

Replaced while it is busy: `test_use_cases.py`, and `tests/integration/test_examples.py` for active and standby.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import fencepost
from examples import exclusive_readers, outbox_relay, replicated_store
from tests.support.spoken_process import Heard

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fencepost.Server]:
    with fencepost.Server(tmp_path / "data", sync="os", process=True) as running:
        yield running


@pytest.fixture
def start() -> Iterator[Callable[..., Heard]]:
    with ExitStack() as started:
        yield lambda file, *arguments: started.enter_context(Heard(f"examples/{file}", *arguments))


def create(server: fencepost.Server, topic: str, **guard: str) -> None:
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(topic, 1, configs={f"fencepost.{key}.group": group for key, group in guard.items()})


def replace(active: Heard, standby: Heard, is_active: Callable[[str], bool]) -> None:
    """The active one is stopped until the other has taken over, and wakes up."""
    active.signal(signal.SIGSTOP)
    standby.hear(is_active)
    active.signal(signal.SIGCONT)


def test_a_replaced_relay_ends_though_there_is_nothing_to_relay(
    server: fencepost.Server, start: Callable[..., Heard], tmp_path: Path
) -> None:
    create(server, "events", writer=outbox_relay.GROUP)
    arguments = ("outbox_relay.py", server.address, "events", tmp_path / "application.db", "--session", "1")

    def is_relaying(line: str) -> bool:
        return line.startswith("relaying from")

    active = start(*arguments)
    active.hear(is_relaying)
    replace(active, start(*arguments), is_relaying)
    assert active.wait() == outbox_relay.FENCED, active
    [said] = [line for line in active.lines if line.startswith("replaced: ")]
    assert "the lease is over: nothing that was sent in the last 1 s (the session) was answered" in said


def test_a_replaced_master_without_commands_becomes_a_replica(
    server: fencepost.Server, start: Callable[..., Heard]
) -> None:
    create(server, "store", writer=replicated_store.GROUP)
    arguments = ("replicated_store.py", server.address, "store")
    anna = start(*arguments, "anna", "1")
    anna.hear(lambda line: line == "anna is the master")
    bert = start(*arguments, "bert", "1")
    replace(anna, bert, lambda line: line == "bert is the master")
    anna.hear(lambda line: line == "anna is the master no more")
    bert.say("add x 7")
    bert.hear(lambda line: line == "x 7")
    anna.hang_up()
    assert anna.wait() == 0, anna


def test_a_replaced_reader_ends_though_there_is_nothing_to_read(
    server: fencepost.Server, start: Callable[..., Heard]
) -> None:
    create(server, "work", reader=exclusive_readers.GROUP)
    arguments = ("exclusive_readers.py", server.address, "work", "--session", "6")

    def holds(line: str) -> bool:
        return line.startswith("holds work-0 ")

    active = start(*arguments)
    active.hear(holds)
    replace(active, start(*arguments), holds)
    assert active.wait() == exclusive_readers.FENCED, active


def test_an_active_one_that_is_replaced_between_two_records_waits_in_line_again(
    server: fencepost.Server, start: Callable[..., Heard]
) -> None:
    create(server, "ticks", writer="ticks-writers")
    arguments = ("active_standby.py", server.address, "ticks")
    anna = start(*arguments, "anna")
    anna.hear(lambda line: line.startswith("anna: active"))
    bert = start(*arguments, "bert")
    replace(anna, bert, lambda line: line.startswith("bert: active"))
    anna.hear(lambda line: line == "anna: fenced, waiting")
