"""A coordinator that does not answer an owner's commit: `delivery_timeout` is a promise here too (PROD-8, OWN-9)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from fencepost.client.own.kafka import KafkaOwner, KafkaProducerBackend
from fencepost.client.produce.lanes import NO_NODE, WriteId
from fencepost.client.produce.options import ProducerOptions
from fencepost.core.producers.pid import Identity
from fencepost.errors import Expired, FencepostError, TimedOut
from fencepost.types import Epoch, Pid
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

LANE = Identity(Pid(2), Epoch(0))
PATIENCE = 1000.0


class Coordinator:
    """Of a lane. Its first commit hangs until it is told how it ends."""

    name = "w.1"
    last_refusal = None

    def __init__(self) -> None:
        self.doubts = 0
        self.epoch = LANE.epoch
        self.done: list[str] = []
        self.asked, self.answer = threading.Event(), threading.Event()
        self.error: FencepostError | None = None

    def add_partitions(self, who: Identity, partitions: object) -> None:
        assert who == Identity(LANE.pid, self.epoch)

    def init(self, timeout_ms: int, who: Identity) -> Identity:
        assert who == Identity(LANE.pid, self.epoch)
        self.done.append("init")
        self.epoch = Epoch(self.epoch + 1)
        return Identity(LANE.pid, self.epoch)

    def end(self, who: Identity, *, commit: bool) -> None:
        assert who == Identity(LANE.pid, self.epoch)
        self.asked.set()
        assert self.answer.wait(30)
        error, self.error = self.error, None
        if error is not None:
            self.doubts += 1
            raise error
        self.done.append("commit" if commit else "abort")


class Case:
    def __init__(self, *, is_committed: bool = True) -> None:
        self.producer = SteppedProducer(cluster(t=1), linger=0.0, delivery_timeout=PATIENCE)
        self.steps = Coordinator()
        self.sender = self.producer.sender
        lane = WriteId(cast("Any", self.steps), "w.1", LANE, NO_NODE)
        who = Identity(Pid(1), Epoch(0))
        assert self.sender.write_under(cast("Any", self.steps), who, [lane], lambda *_: is_committed)

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        """ThreadCalls run on threads of their own, which the clock that is wound by hand knows nothing of."""
        for _ in range(20_000):
            if is_so():
                return
            self.sender.run_once(0.01)
            threading.Event().wait(0.0005)
        raise AssertionError("it did not come to that")

    def until_commit(self) -> None:
        self.turn_until(self.steps.asked.is_set)

    def advance(self, seconds: float) -> None:
        self.producer.clock.advance(seconds)
        self.sender.run_once(0.0)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_record_expires_as_unknown_and_the_lane_goes_on_when_the_coordinator_does(is_committed: bool) -> None:
    case = Case(is_committed=is_committed)
    expired = case.producer.send("t", b"1")
    case.until_commit()
    case.advance(PATIENCE / 2)
    later = case.producer.send("t", b"2")
    case.advance(PATIENCE / 2)
    error = expired.exception(0)
    assert isinstance(error, Expired)
    assert error.persisted == "unknown"
    assert "not committed within 1000 s" in str(error)
    case.steps.error = TimedOut("no answer")
    case.steps.answer.set()
    case.turn_until(later.done)
    assert later.exception(0) is None
    assert case.steps.done == ["init", "commit"], "under the next epoch, which a late commit cannot reach"
    assert str(expired.exception(0)) == str(error), "settled once"


def backend_of(case: Case, released: threading.Event) -> KafkaProducerBackend:
    class Owner:
        identity = current = on_lost = None

        def release(self, *_: object) -> None:
            released.set()

        release_all = release

    return KafkaProducerBackend(case.sender, cast("KafkaOwner", Owner()), ProducerOptions(delivery_timeout=PATIENCE))


def test_what_is_owned_is_not_given_back_while_a_commit_may_still_take_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would fence it: the record would begin to count under the next owner."""
    case = Case()
    released = threading.Event()
    backend = backend_of(case, released)
    case.producer.send("t", b"1")
    case.until_commit()
    case.advance(PATIENCE)
    assert case.sender.queues.is_empty
    calls: list[object] = []
    call = case.sender.call

    def counted(what: Callable[[], object]) -> object:
        calls.append(what)
        return call(what)

    monkeypatch.setattr(case.sender, "call", counted)
    giving_back = threading.Thread(target=backend.release, args=("g", ["t-0"]))
    giving_back.start()
    case.turn_until(lambda: len(calls) > 10 or released.is_set())
    assert not released.is_set()
    case.steps.answer.set()
    case.turn_until(released.is_set)
    giving_back.join()


def test_a_close_waits_a_moment_for_a_hung_commit_and_then_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes next takes over, and fences."""
    monkeypatch.setattr("fencepost.client.own.kafka._PATIENCE_AT_END", 0.05)
    case, released = Case(), threading.Event()
    backend = backend_of(case, released)
    case.producer.send("t", b"1")
    case.until_commit()
    case.advance(PATIENCE)
    closing = threading.Thread(target=backend.close, daemon=True)
    closing.start()
    case.turn_until(lambda: not closing.is_alive())
    assert not released.is_set()
    case.steps.answer.set()
