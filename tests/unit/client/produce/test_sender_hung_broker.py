"""One broker hangs and keeps its connection: metadata, pid and reader use the others (PROD-6, PROD-7)."""

from __future__ import annotations

import logging

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.fetcher import Fetcher, FetchOptions
from fencepost.core.broker_choice import HEDGE_AFTER
from fencepost.types import Offset, TopicPartition
from tests.support.scripted import Api, Fate, ScriptedCluster, ScriptedRequest
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit

SOON = 4 * HEDGE_AFTER
"""Far less than the request timeout of 30 s."""


def hang(on: ScriptedCluster, *nodes: int) -> None:
    """Have these nodes take every request and answer none."""
    on.choose = lambda request: Fate.IGNORE if request.node in nodes else Fate.ANSWER


def led_by(on: ScriptedCluster, node: int, *topics: str) -> None:
    for topic in topics:
        on.move_leader(topic, 0, node)


def asked(on: ScriptedCluster, api: Api) -> list[int]:
    """Return the nodes that were asked, in order."""
    return [request.node for request in on.requests(api)]


def test_a_new_topic_of_a_healthy_node_does_not_wait_for_a_hung_one() -> None:
    on = cluster(3, known=1, new=1)
    led_by(on, 1, "known", "new")
    producer = SteppedProducer(on)
    producer.send("known", b"first")
    producer.settle()
    hung = asked(on, Api.METADATA)[0]
    led_by(on, (hung + 1) % 3, "new")
    hang(on, hung)
    on.seen.clear()
    began = on.clock.monotonic()
    producer.send("new", b"one")
    producer.settle()
    assert on.clock.monotonic() - began < SOON
    assert on.values("new", 0) == [b"one"]
    assert asked(on, Api.METADATA)[0] == hung  # which nobody could know
    assert len(asked(on, Api.METADATA)) == 2


def test_the_log_names_a_broker_that_hangs_behind_an_established_connection(caplog: pytest.LogCaptureFixture) -> None:
    on = cluster(1, t=1)
    producer = SteppedProducer(on, request_timeout=5.0, delivery_timeout=40.0)
    producer.send("t", b"first")
    producer.settle()
    hang(on, 0)
    producer.send("t", b"second")
    producer.settle()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines[0] == f"{on.addresses[0]} did not answer Produce within 5 s; trying again"
    assert len(lines) <= 2  # one per half minute, however often it is dialled


def test_a_broker_that_has_not_answered_is_not_the_first_to_be_asked_again() -> None:
    on = cluster(3, known=1, new=1, newer=1)
    producer = SteppedProducer(on)
    producer.send("known", b"first")
    producer.settle()
    hung = asked(on, Api.METADATA)[0]
    led_by(on, (hung + 1) % 3, "new", "newer")
    hang(on, hung)
    producer.send("new", b"one")
    producer.settle()
    on.seen.clear()
    producer.send("newer", b"two")
    producer.settle()
    assert hung not in asked(on, Api.METADATA)


def test_a_leader_that_moves_between_two_healthy_nodes_is_found_at_once() -> None:
    on = cluster(3, moving=1)
    led_by(on, 1, "moving")
    producer = SteppedProducer(on)
    producer.send("moving", b"first")
    producer.settle()
    hung = asked(on, Api.METADATA)[0]
    here, there = (node for node in range(3) if node != hung)
    led_by(on, here, "moving")
    producer.send("moving", b"second")
    producer.settle()
    hang(on, hung)
    led_by(on, there, "moving")
    began = on.clock.monotonic()
    producer.send("moving", b"third")
    producer.settle()
    assert on.clock.monotonic() - began < SOON
    assert on.values("moving", 0)[-1] == b"third"


def test_the_pid_is_asked_of_another_node_and_only_one_is_used() -> None:
    on = cluster(3, orders=1)
    led_by(on, 2, "orders")
    on.choose = lambda request: (
        Fate.IGNORE if request.key == Api.INIT_PRODUCER_ID and request.node == asked(on, Api.INIT_PRODUCER_ID)[0]
        else Fate.ANSWER
    )  # fmt: skip
    producer = SteppedProducer(on)
    began = on.clock.monotonic()
    for number in range(3):
        producer.send("orders", b"%d" % number)
    producer.settle()
    assert on.clock.monotonic() - began < SOON
    assert len(set(asked(on, Api.INIT_PRODUCER_ID))) == 2
    assert on.values("orders", 0) == [b"0", b"1", b"2"]
    assert len(list(on.logs["orders"][0].producers)) == 1


def test_two_hung_nodes_of_three_do_not_hold_up_the_third() -> None:
    on = cluster(3, known=1, new=1)
    producer = SteppedProducer(on)
    producer.send("known", b"first")
    producer.settle()
    led_by(on, 2, "new")
    hang(on, 0, 1)
    began = on.clock.monotonic()
    producer.send("new", b"one")
    producer.settle()
    assert on.clock.monotonic() - began < 2 * SOON


def test_a_late_answer_of_the_hung_node_changes_nothing() -> None:
    on = cluster(3, known=1, new=1)
    producer = SteppedProducer(on)
    producer.send("known", b"first")
    producer.settle()
    hung = asked(on, Api.METADATA)[0]
    led_by(on, (hung + 1) % 3, "new")
    wakes_up: list[ScriptedRequest] = []

    def fate(request: ScriptedRequest) -> Fate:
        if request.node == hung and request.key == Api.METADATA:
            wakes_up.append(request)
            return Fate.SWALLOW
        return Fate.ANSWER

    on.choose = fate
    producer.send("new", b"one")
    producer.settle()
    assert len(wakes_up) == 1
    producer.run_for(31.0)  # the question to the hung node is overdue by now: nobody is told
    producer.send("new", b"two")
    producer.settle()
    assert on.values("new", 0) == [b"one", b"two"]


def test_a_reader_finds_the_new_leader_although_another_node_hangs() -> None:
    on = cluster(3, orders=1)
    led_by(on, 1, "orders")
    producer = SteppedProducer(on)
    producer.send("orders", b"one")
    producer.settle()
    settings = ClientSettings(tuple(on.addresses.values()))
    partition = TopicPartition("orders", 0)
    fetcher = Fetcher(settings, FetchOptions(), on.network(), on.clock, {partition: (Offset(0), None)})

    def read() -> None:
        while fetcher.take() is None:
            fetcher.run_once()

    read()
    hang(on, 0)
    led_by(on, 2, "orders")
    producer.send("orders", b"two")
    producer.settle()
    began = on.clock.monotonic()
    read()
    assert on.clock.monotonic() - began < SOON
