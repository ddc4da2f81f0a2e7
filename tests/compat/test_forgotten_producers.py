"""Idempotent producers whose records, or whose state in the server, are gone: every client goes on without a loss.

A producer that is new to a partition must begin at sequence 0. One that has written before goes on where it was: after
DeleteRecords and retention because H(P) is still there, and after expiry, in a topic that was deleted and made again,
and when the server lost its snapshots, because the server then cannot know, and asks for nothing.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import aiokafka
import confluent_kafka
import pytest

import fencepost
from fencepost.client.admin_client import HIGH_WATERMARK, Admin
from tests.support.kafka import java

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # see test_kafka_python.py
    import kafka

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.timeout(180),
]

TOPIC = "t"
SECONDS = 60
Send: TypeAlias = Callable[[bytes], None]
"""Sends one record to partition 0 and returns when it is acknowledged."""


@contextmanager
def confluent(address: str) -> Iterator[Send]:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )

    def send(value: bytes) -> None:
        reports: list[object] = []
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(SECONDS) == 0
        assert reports == [None]

    yield send


@contextmanager
def kafka_python(address: str) -> Iterator[Send]:
    producer = kafka.KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    try:
        yield lambda value: producer.send(TOPIC, value, partition=0).get(SECONDS)
    finally:
        producer.close()


@contextmanager
def aio(address: str) -> Iterator[Send]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> aiokafka.AIOKafkaProducer:
        made = aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        await made.start()
        return made

    producer = asyncio.run_coroutine_threadsafe(begin(), loop).result(SECONDS)

    def send(value: bytes) -> None:
        asyncio.run_coroutine_threadsafe(producer.send_and_wait(TOPIC, value, partition=0), loop).result(SECONDS)

    try:
        yield send
    finally:
        asyncio.run_coroutine_threadsafe(producer.stop(), loop).result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def java_client(address: str) -> Iterator[Send]:
    program = Path(__file__).parent / "java" / "SendLines.java"
    process = subprocess.Popen(
        java(program, address, TOPIC), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    incoming, outgoing = process.stdout, process.stdin

    def send(value: bytes) -> None:
        outgoing.write(value + b"\n")
        outgoing.flush()
        assert incoming.readline().startswith(b"sent")

    try:
        yield send
    finally:
        process.kill()
        process.wait(SECONDS)
        outgoing.close()
        incoming.close()


@contextmanager
def ours(address: str) -> Iterator[Send]:
    with fencepost.Producer(address) as producer:

        def send(value: bytes) -> None:
            producer.send(TOPIC, value, partition=0).result(SECONDS)

        yield send


CLIENTS = [
    pytest.param(confluent, id="confluent-kafka"),
    pytest.param(kafka_python, id="kafka-python"),
    pytest.param(aio, id="aiokafka"),
    pytest.param(java_client, id="java", marks=pytest.mark.kafka),
    pytest.param(ours, id="fencepost"),
]


def values(address: str) -> list[bytes | None]:
    with fencepost.Reader(address, TOPIC, start="earliest", stop="latest") as reader:
        return [record.value for record in reader]


def delete_records(admin: Admin) -> None:
    admin.delete_records(TOPIC, {0: HIGH_WATERMARK})


def let_retention_pass(admin: Admin) -> None:
    admin.alter_topic(TOPIC, {"retention.ms": "1"})
    while admin.earliest(TOPIC) != admin.latest(TOPIC):
        time.sleep(0.02)
    admin.alter_topic(TOPIC, {"retention.ms": "-1"})


def recreate(admin: Admin) -> None:
    admin.delete_topic(TOPIC)
    admin.create_topic(TOPIC, 1)


@pytest.fixture(autouse=True)
def _leaked_sockets() -> Iterator[None]:
    """kafka-python leaves sockets open with which it tried in vain to connect: they go here, not in a later test."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _jars(request: pytest.FixtureRequest) -> None:
    if "java" in request.node.name:
        request.getfixturevalue("kafka_jars")


Client: TypeAlias = Callable[[str], AbstractContextManager[Send]]


@pytest.mark.every_run(
    "delete_records-confluent-kafka",
    "delete_records-kafka-python",
    "delete_records-aiokafka",
    "delete_records-java",
    "delete_records-fencepost",
    "let_retention_pass-fencepost",
    "recreate-fencepost",
)
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("take_away", [delete_records, let_retention_pass, recreate])
def test_a_producer_goes_on_when_its_records_are_gone(
    tmp_path: Path, client: Client, take_away: Callable[[Admin], None]
) -> None:
    with fencepost.Server(tmp_path, background_interval_ms=20) as server, Admin(server.address) as admin:
        admin.create_topic(TOPIC, 1)
        with client(server.address) as send:
            for number in range(3):
                send(b"%d" % number)
            take_away(admin)
            for number in range(3, 6):
                send(b"%d" % number)
        assert values(server.address) == [b"3", b"4", b"5"]
        assert admin.latest(TOPIC) == {0: 3 if take_away is recreate else 6}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_producer_goes_on_when_the_server_has_forgotten_it(tmp_path: Path, client: Client) -> None:
    """IDEM-2."""
    with (
        fencepost.Server(tmp_path, background_interval_ms=20, producer_expiry_ms=300) as server,
        Admin(server.address) as admin,
    ):
        admin.create_topic(TOPIC, 1)
        with client(server.address) as send:
            for number in range(3):
                send(b"%d" % number)
            while admin.producers(TOPIC):
                time.sleep(0.02)
            for number in range(3, 6):
                send(b"%d" % number)
        assert values(server.address) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_producer_goes_on_when_the_server_lost_its_snapshots(tmp_path: Path, client: Client) -> None:
    """And the records with them: nothing on the disk knows the producer any more."""
    with ExitStack() as stack:
        with fencepost.Server(tmp_path) as server, Admin(server.address) as admin:
            listen = server.address
            admin.create_topic(TOPIC, 1)
            send = stack.enter_context(client(listen))
            for number in range(3):
                send(b"%d" % number)
            admin.delete_records(TOPIC, {0: HIGH_WATERMARK})
        for snapshot in tmp_path.rglob("*.snapshot"):
            snapshot.write_bytes(b"")
        for log in tmp_path.rglob("*.log"):
            log.rename(log.with_name(f"{3:020}.log")).write_bytes(b"")
        with fencepost.Server(tmp_path, listen=listen):
            for number in range(3, 6):
                send(b"%d" % number)
            assert values(listen) == [b"3", b"4", b"5"]
            stack.close()
