"""The blocking channel over TLS and SASL, against a peer of Python's own `ssl`: idle connections, and their ends."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.blocking import BlockingConnection
from fencepost.client.cluster.routing import Channel, Routes
from fencepost.client.cluster.security import Sasl, Security, Tls
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import Unreachable
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import FrameReader, framed, read_request_head, response_head
from tests.support.certificates import Certificates, make
from tests.support.received_frames import feed

pytestmark = pytest.mark.integration

ASKED = {"include_cluster_authorized_operations": False}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(Path(tmp_path_factory.mktemp("certificates")))


def answer(frame: bytes, lifetime: int) -> bytes:
    head = read_request_head(frame)
    offered = [{"api_key": key, "min_version": 0, "max_version": 0} for key in (18, Key.SASL_HANDSHAKE, 60)]
    offered.append({"api_key": Key.SASL_AUTHENTICATE, "min_version": 0, "max_version": 2})
    fields: dict[int, dict[str, Any]] = {
        Key.API_VERSIONS: {"error_code": 0, "api_keys": offered, "throttle_time": 0},
        Key.SASL_HANDSHAKE: {"error_code": 0, "mechanisms": ["PLAIN"]},
        Key.SASL_AUTHENTICATE: {
            "error_code": 0,
            "error_message": None,
            "auth_bytes": b"",
            "session_lifetime": lifetime,
        },
        Key.DESCRIBE_CLUSTER: {
            "error_code": 0,
            "cluster_id": "c",
            "controller_id": 1,
            "brokers": [],
            "throttle_time": 0,
        },
    }
    body = messages.encode_response(head.key, head.version, fields[head.key])
    return b"".join(framed([response_head(head.key, head.version, head.correlation_id), body]))


@contextmanager
def peer(requests: Sequence[int], tls: ssl.SSLContext | None = None, lifetime: int = 0) -> Iterator[Address]:
    """Takes one connection after the other, and ends each after so many requests (0: when the client does)."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for most in requests:
            accepted, _ = listener.accept()
            with accepted if tls is None else tls.wrap_socket(accepted, server_side=True) as connection:
                frames, answered = FrameReader(), 0
                while (not most or answered < most) and (received := connection.recv(65536)):
                    for frame in feed(frames, received):
                        connection.sendall(answer(frame, lifetime))
                        answered += 1

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield Address(*listener.getsockname())
        thread.join(30)  # all connections were needed
        assert not thread.is_alive()
    finally:
        listener.close()


def server_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    return context


@contextmanager
def asking(address: Address, security: Security) -> Iterator[Channel]:
    with Routes(ClientSettings((address,), security=security)) as routes:
        yield routes.channel(address)


def test_an_idle_connection_over_tls_is_used_again_and_its_end_noticed(certificates: Certificates) -> None:
    """The session tickets that TLS 1.3 sends behind the handshake are not mistaken for an answer, nor for the end."""
    security = Security(Tls(str(certificates.authority)))
    with peer([3, 0], server_context(certificates)) as address, asking(address, security) as channel:
        for _ in range(2):
            assert channel.request(Key.DESCRIBE_CLUSTER, ASKED).message.cluster_id == "c"
        # Versions and two questions: the peer has ended it now, or is about to.
        for loop in channel.routes._idle:
            loop.run_until(lambda: not loop.has_connections, time.monotonic() + 30)  # noqa: B023
        assert channel.request(Key.DESCRIBE_CLUSTER, ASKED).message.cluster_id == "c"


def test_a_connection_that_means_something_is_not_replaced(certificates: Certificates) -> None:
    settings = ClientSettings.of("unused")
    settings = replace(settings, security=Security(Tls(str(certificates.authority))))
    with peer([2], server_context(certificates)) as address, BlockingConnection(address, settings) as connection:
        assert connection.request(Key.DESCRIBE_CLUSTER, ASKED).cluster_id == "c"
        connection.wait_for_end(30)
        with pytest.raises(Unreachable, match="has ended"):
            connection.request(Key.DESCRIBE_CLUSTER, ASKED)


def test_a_session_that_is_over_is_renewed_before_the_next_request() -> None:
    security = Security(sasl=Sasl("PLAIN", "a", "b"))
    with peer([0], lifetime=60_000) as address, asking(address, security) as channel:
        channel.versions()
        (loop,) = channel.routes._idle
        (connection,) = loop._connections.values()
        connection._session_ends = 0.0
        assert channel.request(Key.DESCRIBE_CLUSTER, ASKED).message.cluster_id == "c"
        assert connection.session_ends > 0.0
        assert loop._connections[address] is connection


def test_a_server_that_speaks_no_tls_is_recognised(certificates: Certificates) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def refuse() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        at = Address(*listener.getsockname())
        security = Security(Tls(str(certificates.authority)))
        with asking(at, security) as channel, pytest.raises(Unreachable, match="does not speak TLS"):
            channel.versions()
