"""A wrong host or port is reported at the first failed connection, not when records expire."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.client.cluster.brokers import REPORT_SECONDS
from fencepost.errors import BufferFull, TimedOut, Undelivered
from tests.support.clock import HandWoundClock
from tests.support.process import free_port
from tests.support.scripted import ScriptedCluster
from tests.support.stepped_producer import SteppedProducer, cluster

pytestmark = pytest.mark.unit


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_first_failed_connection_is_a_warning_and_later_ones_come_at_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    on = cluster(orders=1)
    on.kill(0)
    producer = SteppedProducer(on, delivery_timeout=300.0)
    producer.send("orders", b"one")
    producer.run_for(0.5)
    (first,) = warnings(caplog)
    assert "10.0.0.1:9092" in first
    assert "nothing listens" in first
    producer.run_for(REPORT_SECONDS / 2)
    assert warnings(caplog) == [first]
    producer.run_for(2 * REPORT_SECONDS)
    assert 2 < len(warnings(caplog)) < 5


def test_each_address_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    on = ScriptedCluster(HandWoundClock(), nodes=2, topics={"orders": 1})
    on.kill(0)
    on.kill(1)
    producer = SteppedProducer(on)
    producer.send("orders", b"one")
    producer.run_for(1.0)
    assert len(warnings(caplog)) == 2


def test_a_server_that_is_there_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    on = cluster(orders=1)
    producer = SteppedProducer(on)
    producer.send("orders", b"one")
    producer.settle()
    assert warnings(caplog) == []


@pytest.fixture
def refused() -> Iterator[threading.Event]:
    """Return an event that is set when a warning reports a failed connection."""
    failed = threading.Event()

    class Hears(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failed.set()

    handler, logger = Hears(logging.WARNING), logging.getLogger("fencepost.client.cluster.brokers")
    logger.addHandler(handler)
    yield failed
    logger.removeHandler(handler)


def fill(producer: fencepost.Producer) -> None:
    while True:
        producer.send("orders", b"x" * 100)


def test_whatever_runs_out_of_time_names_the_cause_in_its_first_line(refused: threading.Event) -> None:
    address = f"127.0.0.1:{free_port()}"
    cause = f"nothing listens at {address}"
    producer = fencepost.Producer(address, buffer_memory=1000, batch_size=500, block_timeout=0.1)
    ticket = producer.send("orders", b"one")
    assert refused.wait(60)
    with pytest.raises(TimedOut, match=cause):
        ticket.result(0.1)
    with pytest.raises(TimedOut, match=cause):
        producer.flush(0.1)
    with pytest.raises(BufferFull, match=cause):
        fill(producer)
    with pytest.raises(Undelivered, match=cause):
        producer.close(0.1)


def test_a_record_with_a_batch_names_the_cause_too(refused: threading.Event) -> None:
    """The topic is known, and the server has stopped since."""
    with fencepost.Server() as server:
        address = server.address
        producer = fencepost.Producer(address, linger=0.0)
        producer.send("orders", b"one").result(60)
    ticket = producer.send("orders", b"two")
    assert refused.wait(60)
    with pytest.raises(TimedOut, match=f"nothing listens at {address}"):
        ticket.result(0.1)
    with pytest.raises(Undelivered, match=f"nothing listens at {address}"):
        producer.close(0.1)


def test_a_slow_answer_is_not_blamed_on_a_connection() -> None:
    with fencepost.Server() as server, fencepost.Producer(server.address, linger=60.0) as producer:
        ticket = producer.send("orders", b"one")
        with pytest.raises(TimedOut, match=r"not settled within 0\.1 s; it still may be$"):
            ticket.result(0.1)
        producer.flush()
