"""Waiting claims and sessions, with the same tests on both engines (OWN-5, OWN-8, OWN-9).

fencepost's server grants by itself; on Apache Kafka the claimants find out among themselves who is next.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.client.own.kafka_session import session_group
from fencepost.errors import Closed, Fenced, TimedOut
from tests.conftest import Engine, Kafka

pytestmark = pytest.mark.integration

PATIENCE = 60.0
SESSION = 1.5
ROOT = Path(__file__).parent.parent.parent
HOLDER = """
import sys, time, fencepost
with fencepost.hold(sys.argv[1], sys.argv[2], ["a"], wait=60, session=float(sys.argv[3])) as held:
    print("holds", held.token, flush=True)
    held.lost.wait(120)
    print("lost", flush=True)
"""


@pytest.fixture
def address(engine: Engine) -> str:
    return engine.address


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def hold(address: str, name: str, opened: ExitStack) -> Callable[..., fencepost.Hold]:
    def make(*resources: str, **how: Any) -> fencepost.Hold:
        return opened.enter_context(fencepost.hold(address, name, list(resources), **how))

    return make


class Waiters:
    """Claims that wait in threads, one after the other in line."""

    def __init__(self, address: str, name: str, hold: Callable[..., fencepost.Hold]) -> None:
        self._hold = hold
        self._pool = ThreadPoolExecutor(8)
        self._address, self._name = address, name
        self.granted: list[str] = []
        self._lock = threading.Lock()

    def add(self, who: str, *resources: str, **how: Any) -> Future[fencepost.Hold]:
        """Returns when it is in line."""
        before = self.in_line()

        def wait() -> fencepost.Hold:
            held = self._hold(*resources, **{"wait": PATIENCE, "session": 10.0, **how})
            with self._lock:
                self.granted.append(who)
            return held

        waiting = self._pool.submit(wait)
        self.until(lambda: waiting.done() or len(self.in_line()) > len(before))
        return waiting

    def in_line(self) -> list[tuple[str, ...]]:
        with fencepost.Admin(self._address) as admin:
            return [each.resources for each in admin.owners(self._name).waiting]

    @staticmethod
    def until(is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)  # another process's state: nothing to await

    def close(self) -> None:
        self._pool.shutdown(wait=True)


@pytest.fixture
def waiters(address: str, name: str, hold: Callable[..., fencepost.Hold], opened: ExitStack) -> Waiters:
    found = Waiters(address, name, hold)
    opened.callback(found.close)
    return found


def test_waiting_claims_are_granted_in_order_of_arrival(hold: Callable[..., fencepost.Hold], waiters: Waiters) -> None:
    first = hold("a", wait=10.0)
    futures = [waiters.add(who, "a") for who in "bcd"]
    assert waiters.granted == []
    assert not first.lost.is_set(), "a claim that waits severs nobody"
    tokens = [first.token]
    first.close()
    for number, future in enumerate(futures):
        held = future.result(PATIENCE)
        assert held.generation == 1
        tokens.append(held.token)
        assert waiters.granted == list("bcd"[: number + 1])
        held.close()
    assert tokens == sorted(set(tokens))


def test_a_claim_that_waits_for_two_holds_neither_while_it_waits(
    hold: Callable[..., fencepost.Hold], waiters: Waiters
) -> None:
    """A later claim of what is free is not held up by it; it is granted when both are free at the same time."""
    first = hold("a", wait=10.0)
    both = waiters.add("both", "a", "b")
    other = waiters.add("other", "b")
    free = other.result(PATIENCE)
    first.close()
    assert not both.done()
    free.close()
    assert set(both.result(PATIENCE).rows) == {"a", "b"}


def test_a_claim_whose_time_is_over_raises_and_leaves_the_line(
    hold: Callable[..., fencepost.Hold], waiters: Waiters
) -> None:
    first = hold("a", wait=10.0)
    with pytest.raises(TimedOut):
        hold("a", wait=0.3)
    waiters.until(lambda: waiters.in_line() == [])
    assert not first.lost.is_set()
    first.close()
    assert hold("a", wait=PATIENCE).generation == 1


def test_a_waiting_claim_is_refused_when_its_token_can_no_longer_be_the_newest(
    hold: Callable[..., fencepost.Hold], waiters: Waiters
) -> None:
    first = hold("a", wait=10.0)
    waiting = waiters.add("b", "a", after=first.token)
    hold("a", generation=first.generation)
    with pytest.raises(fencepost.Refused):
        waiting.result(PATIENCE)
    waiters.until(lambda: waiters.in_line() == [])


def test_a_claim_that_waits_can_be_given_up(address: str, name: str, hold: Callable[..., fencepost.Hold]) -> None:
    hold("a", wait=10.0)
    with fencepost.Producer(address) as producer:
        raised: list[BaseException] = []

        def wait() -> None:
            try:
                producer.own(name, ["a"], wait=True)
            except Closed as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        with fencepost.Admin(address) as admin:
            Waiters.until(lambda: admin.owners(name).waiting)
            producer.interrupt()
            waiting.join(PATIENCE)
            assert len(raised) == 1
            Waiters.until(lambda: not admin.owners(name).waiting)
        producer.send(name, "v").result(PATIENCE)


def test_an_idle_holder_learns_that_it_was_replaced(hold: Callable[..., fencepost.Hold]) -> None:
    first = hold("a", wait=10.0, session=SESSION)
    second = hold("a", generation=first.generation, session=SESSION)
    assert second.token > first.token
    assert first.lost.wait(PATIENCE)
    with pytest.raises(Fenced):
        first.check()
    second.check()


def test_an_idle_producer_and_an_idle_reader_learn_that_they_were_replaced(address: str, name: str) -> None:
    told: queue.SimpleQueue[Fenced] = queue.SimpleQueue()
    with fencepost.Admin(address) as admin:
        admin.create_topic(name, 1)
    with (
        fencepost.Producer(address) as producer,
        fencepost.Reader(address, name) as reader,
        fencepost.Producer(address) as other,
    ):
        written = producer.own(f"w-{name}", [f"{name}-0"], generation=1, session=2, on_lost=told.put)
        read = reader.own(f"r-{name}", [f"{name}-0"], generation=1, session=30, on_lost=told.put)
        other.own(f"w-{name}", [f"{name}-0"], generation=1)
        assert isinstance(told.get(timeout=60), Fenced)
        assert written.lost.is_set()
        other.own(f"r-{name}", [f"{name}-0"], generation=1)
        while not read.lost.is_set():
            try:
                reader.check_owned()
            except Fenced:
                assert read.lost.wait(60)
        assert isinstance(told.get(timeout=60), Fenced)


class Holder:
    """A process that holds `a`."""

    def __init__(self, address: str, name: str, session: float = SESSION) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, address, name, str(session)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self.token = int(self.hear("holds"))

    def hear(self, word: str) -> str:
        assert self.process.stdout is not None
        said, _, rest = self.process.stdout.readline().strip().partition(" ")
        assert said == word
        return rest

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@pytest.mark.fault
def test_a_holder_that_is_killed_is_followed_by_the_first_in_line(
    address: str, name: str, waiters: Waiters, opened: ExitStack
) -> None:
    holder = Holder(address, name)
    opened.callback(holder.close)
    first, second = waiters.add("b", "a"), waiters.add("c", "a")
    holder.process.kill()
    assert first.result(PATIENCE).token > holder.token
    assert not second.done()
    first.result().close()
    second.result(PATIENCE)


@pytest.mark.fault
def test_a_holder_stopped_beyond_its_session_is_replaced_and_told_when_it_wakes(
    address: str, name: str, waiters: Waiters, opened: ExitStack
) -> None:
    holder = Holder(address, name)
    opened.callback(holder.close)
    waiting = waiters.add("b", "a")
    holder.process.send_signal(signal.SIGSTOP)
    held = waiting.result(PATIENCE)
    holder.process.send_signal(signal.SIGCONT)
    holder.hear("lost")
    held.check()


@pytest.mark.fault
def test_a_waiting_claim_whose_process_is_killed_does_not_hold_up_the_line(
    address: str, name: str, hold: Callable[..., fencepost.Hold], waiters: Waiters, opened: ExitStack
) -> None:
    first = hold("a", wait=10.0)
    dead = subprocess.Popen(
        [sys.executable, "-c", HOLDER, address, name, str(SESSION)], cwd=ROOT, stdout=subprocess.PIPE
    )
    opened.callback(dead.communicate)
    opened.callback(dead.kill)
    Waiters.until(lambda: len(waiters.in_line()) == 1)
    waiting = waiters.add("b", "a")
    dead.kill()
    first.close()
    waiting.result(PATIENCE)


@pytest.mark.kafka
def test_a_session_that_is_too_short_for_the_broker_becomes_the_shortest_it_takes(
    kafka: Kafka, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """group.min.session.timeout.ms is six seconds by default: no error, but said."""
    with fencepost.hold(kafka.address, name, ["a"], wait=10.0, session=1.0) as held:
        held.check()
        assert "no session of 1 s" in caplog.text
        with fencepost.Admin(kafka.address) as admin:
            Waiters.until(lambda: admin.owners(name).owners)  # a commit is answered before it can be read
            (owner,) = admin.owners(name).owners
            group = admin.describe_group(session_group(owner.client_id))
            assert len(group.members) == 1
    with fencepost.Admin(kafka.address) as admin:
        Waiters.until(lambda: not admin.describe_group(session_group(owner.client_id)).members)


@pytest.mark.kafka
def test_a_group_that_cannot_be_a_topic_is_refused_before_anything_is_joined(kafka: Kafka, name: str) -> None:
    with pytest.raises(fencepost.ConfigError, match="topic of its own"):
        fencepost.hold(kafka.address, f"{name}/no topic", ["a"], wait=1.0)
