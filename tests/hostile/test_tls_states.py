"""Strangers at a listener that requires client certificates: broken, foreign and premature bytes let nobody in."""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import fencepost
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.net.connection import Connection
from fencepost.server.net.listener import Listener
from tests.support.certificates import Certificates, make

pytestmark = pytest.mark.hostile

REQUEST = bytes.fromhex("0000000e0012000000000001000474657374")
"""ApiVersions v0 of the client `test`."""


class Gate(NamedTuple):
    server: fencepost.Server
    certificates: Certificates
    let_in: list[str]
    """The listeners of the connections that got past the handshake."""
    listeners: list[Listener]

    def dial(self, listener: str = "mutual") -> socket.socket:
        host, _, port = self.server.addresses[listener].rpartition(":")
        return socket.create_connection((host, int(port)), 30)

    def is_well(self) -> bool:
        with self.dial("plain") as client:
            client.sendall(REQUEST)
            return len(client.recv(4)) == 4


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    certificates = make(tmp_path_factory.mktemp("certificates"))
    let_in: list[str] = []
    listeners: list[Listener] = []
    opened, wait_for = Listener.opened, Listener.wait_for

    def note(self: Listener, connection: Connection) -> None:
        let_in.append(connection.session.listener.name)
        opened(self, connection)

    def note_listener(self: Listener, pending: object) -> None:
        listeners[:] = [self]
        wait_for(self, pending)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Listener, "opened", note)
        patch.setattr(Listener, "wait_for", note_listener)
        mutual = certificates.mutual_listener()
        plain = ListenerConfig(name="plain", address="127.0.0.1:0")
        with fencepost.Server(listeners=(mutual, plain), authentication_timeout_ms=1000) as server:
            yield Gate(server, certificates, let_in, listeners)


def flights(gate: Gate) -> tuple[bytes, bytes]:
    """Return what an honest client without a certificate sends: its hello, and its answer to the server's."""
    context = ssl.create_default_context(cafile=gate.certificates.authority)
    while True:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        with gate.dial() as wire:
            wire.sendall(hello)
            while data := wire.recv(65536):  # on a busy machine the time for the handshake may be over: once more
                incoming.write(data)
                try:
                    client.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                return hello, outgoing.read()


def mutated(data: bytes, random_: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random_.randint(1, 8)):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    cut = random_.randrange(1, len(changed) + 1) if random_.random() < 0.3 else len(changed)
    return bytes(changed[:cut])


@pytest.mark.parametrize("seed", range(4))
def test_broken_handshakes_let_nobody_in(gate: Gate, seed: int) -> None:
    """Each connection sends a mutated hello or a mutated answer, and then a request, encrypted or not."""
    random_ = random.Random(seed)
    hello, answer = flights(gate)
    for _ in range(100):
        with gate.dial() as wire:
            wire.settimeout(0.2)
            pieces = [mutated(hello, random_)] if random_.random() < 0.5 else [hello, mutated(answer, random_)]
            pieces.append(random_.choice([REQUEST, b"\x17\x03\x03" + len(REQUEST).to_bytes(2, "big") + REQUEST, b""]))
            try:
                for piece in pieces:
                    wire.sendall(piece)
                wire.recv(10_000)
            except OSError:
                pass  # refused already, or the server waits for more
    assert "mutual" not in gate.let_in
    assert gate.is_well()


def test_a_request_in_the_middle_of_a_handshake_is_not_served(gate: Gate) -> None:
    hello, answer = flights(gate)
    for pieces in ([REQUEST], [hello, REQUEST], [hello, answer, REQUEST], [hello, answer, answer], [hello, hello]):
        with gate.dial() as wire:
            for piece in pieces:
                try:
                    wire.sendall(piece)
                except OSError:
                    break
            received = b""
            try:
                while data := wire.recv(65536):
                    received += data
            except ConnectionResetError:
                pass
            assert b"\x00\x12\x00\x00\x00" not in received  # the ranges of ApiVersions
    assert "mutual" not in gate.let_in


def test_nothing_of_the_strangers_is_left(gate: Gate) -> None:
    strangers = [gate.dial() for _ in range(50)]
    for number, stranger in enumerate(strangers):
        if number % 2:
            stranger.sendall(b"\x16\x03\x01\x02\x00")
    for stranger in strangers:
        stranger.close()
    ends = time.monotonic() + 30
    while gate.listeners[0]._pending:
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_flood_of_handshakes_does_not_hold_up_a_bystander(gate: Gate) -> None:
    """The signatures are made in threads: a bystander's requests are answered meanwhile."""
    context = ssl.create_default_context(cafile=gate.certificates.authority)
    done, shaken = threading.Event(), threading.Event()

    def flood() -> None:
        while not done.is_set():
            try:
                with context.wrap_socket(gate.dial(), server_hostname="127.0.0.1"):
                    shaken.set()
            except OSError:
                pass

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert shaken.wait(60)
        with gate.dial("plain") as bystander:
            for _ in range(200):
                bystander.sendall(REQUEST)
                size = int.from_bytes(bystander.recv(4, socket.MSG_WAITALL), "big")
                assert len(bystander.recv(size, socket.MSG_WAITALL)) == size
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert "mutual" not in gate.let_in
