"""A send thread that ends by a bug: nobody waits for ever, and no ticket says more than is known."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fencepost.client.cluster.thread_calls import ThreadCalls
from fencepost.client.produce.lanes import NO_NODE, WriteId
from fencepost.core.producers.inflight import Flight
from fencepost.core.producers.pid import Identity
from fencepost.errors import Closed, FencepostError, SendFailed
from fencepost.types import Epoch, Pid
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit


class SlowToEnd:
    """A coordinator that does not answer the commit."""

    name = "w"
    doubts = 0

    def __init__(self) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()

    def add_partitions(self, who: Identity, partitions: object) -> None:
        pass

    def end(self, who: Identity, *, commit: bool) -> None:
        self.asked.set()
        assert self.answer.wait(10)


def breaks(*_: object, **__: object) -> Any:
    raise RuntimeError("on purpose")


def test_records_whose_commit_is_under_way_are_settled_as_unknown() -> None:
    """OWN-9."""
    producer, steps = SteppedProducer(cluster(t=1)), SlowToEnd()
    sender = producer.sender
    lane = WriteId(steps, "w.1", Identity(Pid(2), Epoch(0)), NO_NODE)  # type: ignore[arg-type]
    assert sender.write_under(steps, Identity(Pid(1), Epoch(0)), [lane], lambda *_: True)  # type: ignore[arg-type]
    ticket = producer.send("t", b"v")
    while not steps.asked.is_set():
        sender.run_once(0.01)
        steps.asked.wait(0.0005)
    producer.network.poll = breaks  # type: ignore[method-assign]
    sender.run()
    steps.answer.set()
    error = ticket.exception(0)
    assert isinstance(error, SendFailed)
    assert error.persisted == "unknown"
    assert sender.queues.wait_until_settled(0)


def test_a_callback_that_wants_to_end_the_send_thread_does_no_harm() -> None:
    failed: list[object] = []

    def ends(error: object) -> None:
        failed.append(error)
        raise SystemExit(1)

    producer = SteppedProducer(cluster(t=3), on_error=ends, delivery_timeout=5.0)
    tickets = [producer.send("t", b"v", partition=partition) for partition in range(3)]
    for ticket in tickets:  # now, and when the partitions are known
        ticket.add_done_callback(ends)
    producer.settle()
    assert [ticket.result(0).offset for ticket in tickets] == [0, 0, 0]
    producer.cluster.kill(0)
    more = [producer.send("t", b"v", partition=partition) for partition in range(3)]
    producer.run_for(6.0)
    assert all(ticket.exception(0) for ticket in more)
    assert len(failed) == 6
    assert producer.sender.queues.wait_until_settled(0)


def test_a_batch_that_was_just_taken_from_its_queue_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SteppedProducer(cluster(t=1))
    ticket = producer.send("t", b"v")
    monkeypatch.setattr(Flight, "send", breaks)
    producer.sender.run()
    assert isinstance(ticket.exception(0), SendFailed)
    assert producer.sender.queues.wait_until_settled(0)
    with pytest.raises(SendFailed, match="on purpose"):
        producer.send("t", b"w")


def test_calls_are_answered_even_if_the_network_cannot_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = SteppedProducer(cluster(t=1))
    monkeypatch.setattr(producer.sender.brokers, "close", breaks)
    producer.sender.stop()
    with pytest.raises(RuntimeError, match="on purpose"):
        producer.sender.run()
    with pytest.raises(Closed):
        producer.sender.call(lambda: None)


def test_an_errand_that_fails_by_a_bug_brings_that_back() -> None:
    woken = threading.Event()
    thread_calls = ThreadCalls(woken.set)
    outcomes: list[object] = []
    thread_calls.run_in_thread(breaks, outcomes.append)
    assert woken.wait(10)
    thread_calls.run_due()
    (error,) = outcomes
    assert isinstance(error, FencepostError)
    assert isinstance(error.__cause__, RuntimeError)


def test_an_errand_for_which_there_is_no_thread_brings_that_back(monkeypatch: pytest.MonkeyPatch) -> None:
    thread_calls = ThreadCalls(lambda: None)
    outcomes: list[object] = []
    monkeypatch.setattr(threading.Thread, "start", breaks)
    thread_calls.run_in_thread(lambda: 1, outcomes.append)
    thread_calls.run_due()
    assert isinstance(outcomes[0], FencepostError)
