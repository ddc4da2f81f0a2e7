"""In a forked child the parent's tickets, claims and transactions raise at once, and say why. None of them hangs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import fencepost
from fencepost import Closed, Fenced, Producer, Reader, SendFailed, TopicPartition, Undelivered
from tests.conftest import Engine
from tests.support.process import free_port

pytestmark = pytest.mark.integration


def said_in_child(call: Callable[[], object]) -> str:
    """What the call raises in a forked child: its type and message. A child that hangs is ended, and says nothing."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run in here
        threading.Timer(30, os._exit, (1,)).start()
        said = "nothing was raised"
        try:
            call()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(tell, said.encode())
            os._exit(0)
    os.close(tell)
    with open(told, encoding="utf-8") as words:
        said = words.read()
    os.waitpid(child, 0)
    return said


def assert_names_the_fork(call: Callable[[], object], kind: type[Exception]) -> None:
    said = said_in_child(call)
    assert said.startswith(f"{kind.__name__}: "), said
    assert "forked" in said
    assert "parent" in said


@pytest.mark.parametrize("is_warm", [False, True], ids=["partitions unknown", "partitions known"])
def test_a_pending_ticket_of_the_parent_raises(address: str, topic: str, is_warm: bool) -> None:
    producer = Producer(address if is_warm else f"127.0.0.1:{free_port()}", linger=60.0)
    if is_warm:
        producer.send(topic, b"first", partition=0)
        producer.flush()
    ticket = producer.send(topic, b"value", partition=0)
    assert_names_the_fork(ticket.result, SendFailed)
    if not is_warm:  # whole batches of a table do not linger
        assert_names_the_fork(producer.send_arrow(topic, pa.table({"value": [b"value"]})).result, SendFailed)
    assert "persisted: unknown" in said_in_child(ticket.result)
    assert not ticket.done(), "the parent's ticket is as it was"
    with contextlib.suppress(Undelivered):
        producer.close(None if is_warm else 0)
    assert (ticket.exception() is None) == is_warm


def test_a_settled_ticket_of_the_parent_can_be_read(address: str, topic: str) -> None:
    with Producer(address) as producer:
        ticket = producer.send(topic, b"value")
        ticket.result(60)

        def read() -> None:
            raise ValueError(ticket.result(60).offset)

        assert said_in_child(read) == "ValueError: 0"


def test_a_producer_goes_on_in_a_child_without_its_parents_records(address: str, topic: str) -> None:
    with Producer(address, linger=0.5) as producer:
        producer.send(topic, b"parent", partition=0)

        def send() -> None:
            producer.flush()
            raise ValueError(producer.send(topic, b"child", partition=0).result(60).topic)

        assert said_in_child(send) == f"ValueError: {topic}"
    with Reader(address, topic, stop="latest") as reader:
        assert sorted(record.value or b"" for record in reader) == [b"child", b"parent"]


def test_a_claim_of_the_parent_is_not_the_childs(engine: Engine, name: str) -> None:
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, partitions=1)
    with Producer(engine.address) as producer, Reader(engine.address, TopicPartition(name, 0)) as reader:
        claims = [producer.own(f"w-{name}", [f"{name}-0"], generation=1), reader.own(f"r-{name}", generation=1)]
        with fencepost.hold(engine.address, f"h-{name}", ["it"], generation=1) as held:
            calls: list[Any] = [producer.check_owned, reader.check_owned, held.check]
            for claim in claims:
                calls += [claim.check, claim.release]
            for call in calls:
                assert_names_the_fork(call, Fenced)
            assert_names_the_fork(lambda: reader.poll(1), Closed)
            for call in calls:
                call()  # in the parent everything is as it was


def test_a_transaction_of_the_parent_cannot_be_ended_by_a_child(address: str, topic: str) -> None:
    with Producer(address, name=topic) as producer, producer.transaction() as transaction:
        producer.send(topic, b"value").result(60)
        for call in (transaction.commit, transaction.abort, lambda: producer.send(topic, b"child")):
            assert_names_the_fork(call, Closed)
    with Reader(address, topic, stop="latest") as reader:
        assert [record.value for record in reader] == [b"value"]


def test_a_reader_of_the_parent_is_closed_in_a_child(address: str, topic: str) -> None:
    """They would share one connection, and each would get half of the other's answers."""
    with Producer(address) as producer:
        producer.send(topic, b"value").result(60)
    with Reader(address, topic) as reader:
        assert_names_the_fork(lambda: reader.poll(10), Closed)
        assert [record.value for record in reader.poll(60) or ()] == [b"value"]
