"""A server whose answers make no sense costs its clients neither memory nor time: they report it and go on."""

from __future__ import annotations

import dataclasses
import socketserver
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

import fencepost
from fencepost import Admin, Producer, Reader
from fencepost.client.cluster.addresses import parse_servers
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import Expired, FencepostError, Unreachable
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import read_response_head, response_head
from fencepost.wire.primitives import INT32
from tests.support.proxy import Proxy

pytestmark = pytest.mark.integration

TOPIC: Final = "orders"
TIMEOUT: Final = 0.3

Lie = Callable[[dict[str, Any]], None]
"""Changes the fields of an answer to Metadata."""


def of_broker(**fields: Any) -> Lie:
    return lambda answer: answer["brokers"][0].update(fields)


def of_partitions(*indexes: int) -> Lie:
    def lie(answer: dict[str, Any]) -> None:
        for topic in answer["topics"]:
            topic["partitions"] = [{**topic["partitions"][0], "partition_index": index} for index in indexes]

    return lie


LIES: Final[Mapping[str, Lie]] = {
    "a partition of two thousand million": of_partitions(0, 2**31 - 1),
    "a negative partition": of_partitions(-1, 0),
    "a partition twice": of_partitions(0, 0),
    "a port that does not exist": of_broker(port=70_000),
    "a negative port": of_broker(port=-1),
    "a host name of 300 characters": of_broker(host="h" * 300),
    "a host name with a zero byte": of_broker(host="h\0"),
    "no host name": of_broker(host=""),
}
every_lie = pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())


class Liar(Proxy):
    """A proxy that changes the answers to Metadata as long as `lie` is set."""

    lie: Lie | None = None

    async def renamed(self, key: int, version: int, frame: bytes) -> bytes:
        renamed = await super().renamed(key, version, frame)
        if key != Key.METADATA or self.lie is None:
            return renamed
        correlation_id, at = read_response_head(key, version, renamed)
        fields = dataclasses.asdict(messages.decode_response(key, version, renamed, at))
        self.lie(fields)
        return response_head(key, version, correlation_id) + messages.encode_response(key, version, fields)


@pytest.fixture
def liar() -> Iterator[Liar]:
    with fencepost.Server() as server:
        with Admin(server.address) as admin:
            admin.create_topic(TOPIC, 1)
        with Liar(server.address) as proxy:
            yield proxy


def settings(address: str) -> ClientSettings:
    return ClientSettings(parse_servers(address), request_timeout=TIMEOUT, connect_timeout=TIMEOUT)


@every_lie
def test_a_record_expires_in_time_and_the_producer_lives_on(liar: Liar, lie: Lie) -> None:
    liar.lie = lie
    with Producer(settings(liar.address), delivery_timeout=TIMEOUT) as producer:
        tracemalloc.start()
        try:
            with pytest.raises(Expired) as caught:
                producer.send(TOPIC, b"lost").result(30 * TIMEOUT)
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()
        assert caught.value.persisted == "no"
        liar.lie = None
        assert any(_delivered(producer) for _ in range(20))


def _delivered(producer: Producer) -> bool:
    try:
        return producer.send(TOPIC, b"kept").result(30 * TIMEOUT).offset >= 0
    except Expired:  # it still backs off
        return False


@every_lie
def test_administration_and_readers_raise_errors_of_ours(liar: Liar, lie: Lie) -> None:
    liar.lie = lie
    with Admin(settings(liar.address)) as admin, pytest.raises(FencepostError):
        admin.latest(TOPIC)
    with pytest.raises(FencepostError), Reader(settings(liar.address), TOPIC) as reader:
        reader.poll(TIMEOUT)


@contextmanager
def endless_versions() -> Iterator[str]:
    """A server whose answer to ApiVersions has 70 MB."""

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.read(INT32.unpack(self.rfile.read(4))[0])
            with suppress(OSError):  # the client has had enough
                self.wfile.write(INT32.pack(70_000_000) + bytes(70_000_000))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Connection) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_an_endless_list_of_apis_is_refused_before_it_is_read() -> None:
    with endless_versions() as address:
        patient = dataclasses.replace(settings(address), request_timeout=60.0, connect_timeout=60.0)
        with Admin(patient) as admin, pytest.raises(Unreachable, match="frame of"):
            admin.topics()
        with Producer(settings(address), delivery_timeout=TIMEOUT) as producer, pytest.raises(Expired):
            producer.send(TOPIC, b"lost").result(30 * TIMEOUT)
