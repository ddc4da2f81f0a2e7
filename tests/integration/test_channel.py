"""The blocking channel against peers that misbehave: each failure is named, and the next question starts afresh."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from fencepost.client.cluster.addresses import Address, parse_address
from fencepost.client.cluster.blocking import Loop
from fencepost.client.cluster.routing import Channel, Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ErrorCode, ServerError, TimedOut, Unreachable
from fencepost.server.server import Server
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import FrameReader, framed, read_request_head, response_head
from tests.support.received_frames import feed

pytestmark = pytest.mark.integration

Respond = Callable[[bytes], bytes | None]
"""A request's frame → what is sent back; None ends the connection."""


@contextmanager
def peer(*connections: Respond) -> Iterator[Address]:
    """Listens on a free port and plays one part per connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for respond in connections:
            accepted, _ = listener.accept()
            with accepted:
                frames = FrameReader()
                while received := accepted.recv(65536):
                    answers = [respond(frame) for frame in feed(frames, received)]
                    if None in answers:
                        break
                    accepted.sendall(b"".join(answer for answer in answers if answer))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address(*listener.getsockname())
    finally:
        listener.close()


def answer(frame: bytes, code: int = 0, *, version: int | None = None) -> bytes:
    """An ApiVersions answer that offers ApiVersions and DescribeCluster; to DescribeCluster, an empty cluster."""
    head = read_request_head(frame)
    version = head.version if version is None else version
    if head.key == Key.API_VERSIONS:
        offered = [{"api_key": key, "min_version": 0, "max_version": 0} for key in (18, 60, 61)]
        fields = {"error_code": code, "api_keys": offered, "throttle_time": 0}
    else:
        fields = {"error_code": code, "cluster_id": "c", "controller_id": 1, "brokers": [], "throttle_time": 0}
    body = messages.encode_response(head.key, version, fields)
    return b"".join(framed([response_head(head.key, head.version, head.correlation_id), body]))


def one(address: Address, **settings: Any) -> Channel:
    return Routes(ClientSettings((address,), **settings)).channel(address)


@contextmanager
def asking(address: Address, **settings: Any) -> Iterator[Channel]:
    with Routes(ClientSettings((address,), **settings)) as routes:
        yield routes.channel(address)


def test_a_refused_connection_says_what_to_do() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = Address(*taken.getsockname())
    with pytest.raises(Unreachable, match=rf"nothing listens at {address}: start a server .*fencepost serve") as caught:
        one(address).versions()
    assert caught.value.retriable
    assert "FENCEPOST_SERVERS" not in str(caught.value), "of the command line, which a program has no use for"


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid:9092"):
        one(Address("no-such-host.invalid", 9092)).versions()


def test_a_silent_server_is_timed_out_and_not_waited_for_twice() -> None:
    with (
        peer(lambda _: b"", answer) as address,
        asking(address, request_timeout=0.2) as channel,
    ):
        with pytest.raises(TimedOut, match=r"did not answer ApiVersions within 0\.2 s; whether it took effect"):
            channel.versions()
        assert channel.offers(Key.DESCRIBE_CLUSTER)  # on a new connection


def test_an_answer_that_trickles_in_is_put_together() -> None:
    """The peer sends byte by byte: frames do not end where reads do."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, ThreadPoolExecutor(1) as pool:

        def trickle() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                (frame,) = feed(FrameReader(), accepted.recv(65536))
                for byte in answer(frame):
                    accepted.sendall(bytes([byte]))

        pool.submit(trickle)
        with asking(Address(*listener.getsockname())) as channel:
            assert set(channel.versions()) == {18, 60, 61}


def test_a_web_server_is_recognised_as_no_kafka() -> None:
    with (
        peer(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(Unreachable, match="does not speak Kafka's protocol"),
    ):
        one(address).versions()


def test_an_answer_to_another_question_ends_the_connection() -> None:
    def confused(frame: bytes) -> bytes:
        whole = bytearray(answer(frame))
        whole[4:8] = b"\x00\x00\x30\x39"
        return bytes(whole)

    with peer(confused) as address, pytest.raises(Unreachable, match="answer 12345 to question 1"):
        one(address).versions()


def test_a_server_that_hangs_up_is_said_to_have_done_so() -> None:
    with peer(lambda _: None) as address, pytest.raises(Unreachable, match="closed the connection before it answered"):
        one(address).versions()


def test_an_old_server_is_asked_again_in_version_0_of_api_versions() -> None:
    asked: list[int] = []

    def old(frame: bytes) -> bytes:
        asked.append(read_request_head(frame).version)
        return answer(frame, ErrorCode.UNSUPPORTED_VERSION, version=0) if asked[-1] else answer(frame)

    with peer(old) as address, asking(address) as channel:
        assert set(channel.versions()) == {18, 60, 61}
    assert asked == [3, 0]


def test_the_client_says_its_name() -> None:
    names: list[str] = []

    def listening(frame: bytes) -> bytes:
        head = read_request_head(frame)
        request = messages.decode_request(head.key, head.version, frame, head.body_at)
        names.append(request.client_software_name)
        return answer(frame)

    with peer(listening) as address, asking(address) as channel:
        channel.versions()
    assert names == ["fencepost"]


def test_an_api_that_the_server_does_not_have_is_named_without_asking() -> None:
    with peer(answer) as address, asking(address) as channel:
        with pytest.raises(ServerError, match="does not offer DeleteTopics") as caught:
            channel.request(Key.DELETE_TOPICS, {})
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(ServerError, match="offers ApiVersions in versions 0 to 0, this client speaks 0 to -1"):
            channel.request(Key.API_VERSIONS, {}, at_most=-1)


def test_a_connection_that_the_server_ended_while_idle_is_replaced_without_an_error() -> None:
    hung_up = threading.Event()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener, ThreadPoolExecutor(1) as pool:

        def serve() -> None:
            for ends_after_one in (True, False):
                accepted, _ = listener.accept()
                with accepted:
                    frames = FrameReader()
                    while received := accepted.recv(65536):
                        for frame in feed(frames, received):
                            accepted.sendall(answer(frame))
                        if ends_after_one:
                            accepted.shutdown(socket.SHUT_RDWR)
                            hung_up.set()

        served = pool.submit(serve)
        with asking(Address(*listener.getsockname())) as channel:
            channel.versions()
            assert hung_up.wait(30)
            fields = {"include_cluster_authorized_operations": False}
            assert channel.request(Key.DESCRIBE_CLUSTER, fields).message.cluster_id == "c"
        served.result(30)


def metadata_of(topic: str) -> dict[str, Any]:
    topics = [{"name": topic, "topic_id": None}]
    return {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


def test_many_threads_share_a_channel_and_each_gets_its_own_answer(fencepost_server: Server) -> None:
    with asking(parse_address(fencepost_server.address)) as channel, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> bool:
            (topic,) = channel.request(Key.METADATA, metadata_of(f"unknown-{number}")).message.topics
            return bool(topic.name == f"unknown-{number}")

        assert all(pool.map(ask, range(200)))


def test_an_interrupted_request_leaves_no_connection_that_is_half_read(fencepost_server: Server) -> None:
    """Ctrl-C in the middle of an answer: the next request gets its own answer, over a new connection."""
    with asking(parse_address(fencepost_server.address)) as channel:
        channel.versions()
        (loop,) = channel.routes._idle
        poll = loop._network.poll

        def interrupted(timeout: float | None) -> bool:
            if timeout:
                raise KeyboardInterrupt
            return poll(timeout)

        loop._network.poll = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            channel.request(Key.METADATA, metadata_of("one"))
        assert not channel.routes._idle
        (topic,) = channel.request(Key.METADATA, metadata_of("other")).message.topics
        assert topic.name == "other"


def test_a_request_that_is_under_way_when_the_routes_are_closed_leaves_no_socket(fencepost_server: Server) -> None:
    routes = Routes(ClientSettings.of(fencepost_server.address))
    begun, go_on = threading.Event(), threading.Event()

    def ask(loop: Loop) -> Loop:
        begun.set()
        assert go_on.wait(60)
        return loop

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(routes.run, ask)
        assert begun.wait(60)
        routes.close()
        go_on.set()
        loop = asked.result(60)
    assert not routes._idle
    with pytest.raises(Unreachable, match="was closed before the answer came"):
        loop.run_until(lambda: False)
