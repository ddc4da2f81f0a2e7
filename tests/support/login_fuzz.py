"""Strangers who try random and mutated bytes before they have logged in, and a server that counts whom it lets in.

Each attempt is one connection. It is made from the seed and its number alone, so a failed one can be repeated. The
server runs in this process: what it lets in is counted inside it, whether or not an answer arrives in time.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

import fencepost
from fencepost.client.cluster.sasl import Scram
from fencepost.core.security import guessing
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.net import connection as connection_module
from fencepost.server.net.connection import Connection
from fencepost.server.net.listener import Listener
from fencepost.server.net.router import ApiRequest
from fencepost.server.security.logins import Logins
from fencepost.wire import frame, messages
from tests.support.batches import batch
from tests.support.certificates import Certificates, make
from tests.support.issuer import RULES, Issuer
from tests.support.logins import add_users
from tests.support.raw import LENGTH, RawClient

SECRETS: Final = {"alice": "alice-secret"}
MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER")
LOGIN_KEYS: Final = {17, 18, 36}
THREADS: Final = 8
WAIT_SECONDS: Final = 0.1
"""A stranger waits so long for an answer, and then leaves."""
HELLO: Final = b"\x16\x03\x01"
BROKEN: Final = (OSError, ValueError)
"""What a client's own TLS may raise over the server's refusal."""


class Gate:
    """A server with every kind of listener, and the list of strangers that it let in."""

    def __init__(self, folder: Path) -> None:
        self.certificates: Certificates = make(folder)
        self.issuer = Issuer(folder / "jwks.json")
        self.data = folder / "data"
        self.addresses: dict[str, tuple[str, int]] = {}
        self.let_in: list[str] = []
        self.listeners: list[Listener] = []
        self.recorded: dict[str, list[bytes]] = {}
        """The client's messages of logins that succeeded, for strangers to repeat."""
        self.hello = b""
        """The first bytes of an honest TLS client."""

    def dial(self, listener: str) -> socket.socket:
        return socket.create_connection(self.addresses[listener], 30)


@contextmanager
def open_gate(folder: Path) -> Iterator[Gate]:
    gate = Gate(folder)
    add_users(gate.data, SECRETS)
    with pytest.MonkeyPatch.context() as patch:
        # Delays would only make strangers slower: tests of logins are about them.
        patch.setattr(guessing, "MAX_PAUSE_SECONDS", 0.0)
        patch.setattr(guessing, "ADDRESS_PAUSE", 0.0)
        with fencepost.Server(
            gate.data,
            listeners=_listeners(gate.certificates),
            authentication_timeout_ms=5000,  # more than an honest login takes on a busy machine
            max_connection_rate_per_address=2**31 - 1,
            oauth_jwks=str(gate.issuer.file),
            **RULES,  # type: ignore[arg-type]
        ) as server:
            for name, address in server.addresses.items():
                host, _, port = address.rpartition(":")
                gate.addresses[name] = host, int(port)
            with RawClient(server.addresses["open"]) as client:
                client.create_topic("bystander")
            for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
                gate.recorded[mechanism] = _record(server.addresses["inside"], mechanism)
            gate.hello = _hello(gate.certificates)
            _watch(gate, patch)
            yield gate


def _listeners(certificates: Certificates) -> tuple[ListenerConfig, ...]:
    at = "127.0.0.1:0"
    return (
        ListenerConfig(name="open", address=at),
        ListenerConfig(name="inside", address=at, protocol="sasl_plaintext", mechanisms=MECHANISMS),
        ListenerConfig(
            name="outside", address=at, protocol="sasl_ssl", mechanisms=MECHANISMS, certificate=certificates.server
        ),
        certificates.mutual_listener(address=at),
    )


def _watch(gate: Gate, patch: pytest.MonkeyPatch) -> None:
    """Count completed logins, accepted certificates, and requests that reach a handler behind the gate."""
    complete, opened = Logins._complete, Listener.opened

    def note_login(self: Logins, session: Any, user: str) -> None:
        gate.let_in.append(f"login as {user} on {session.listener.name}")
        complete(self, session, user)

    def note_connection(self: Listener, connection: Connection) -> None:
        gate.listeners[:] = [self]
        if connection.session.listener.name == "mutual":
            gate.let_in.append("connection on mutual")
        opened(self, connection)

    def note_request(key: int, version: int, client_id: Any, message: Any, body_at: int, by: Connection) -> ApiRequest:
        if by.session.listener.name != "open" and key not in LOGIN_KEYS:
            gate.let_in.append(f"request {key} on {by.session.listener.name}")
        return ApiRequest(key, version, client_id, message, body_at, by)

    patch.setattr(Logins, "_complete", note_login)
    patch.setattr(Listener, "opened", note_connection)
    patch.setattr(connection_module, "ApiRequest", note_request)


def _record(address: str, mechanism: str) -> list[bytes]:
    exchange = Scram(mechanism, "alice", SECRETS["alice"])
    message: bytes | None = exchange.first()
    sent = []
    with RawClient(address) as client:
        client.call(17, 1, mechanism=mechanism)
        while message is not None:
            sent.append(message)
            answer = client.call(36, 2, auth_bytes=message)
            assert answer.error_code == 0, answer
            message = exchange.next(answer.auth_bytes)
    return sent


def _hello(certificates: Certificates) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=certificates.authority)
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def with_early_data(hello: bytes) -> bytes:
    """Return a hello that announces early data (RFC 8446, extension 42).

    record: type(1) version(2) length(2); handshake: type(1) length(3) version(2) random(32) session(1+n) ciphers(2+n)
    compression(1+n) extensions(2+n)"""
    body = bytearray(hello[9:])
    at = 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    body[at : at + 2] = (int.from_bytes(body[at : at + 2], "big") + 4).to_bytes(2, "big")
    body += b"\x00\x2a\x00\x00"
    return hello[:3] + (len(body) + 4).to_bytes(2, "big") + b"\x01" + len(body).to_bytes(3, "big") + bytes(body)


class Fuzz:
    """Attempts by number; `run` makes many of them, in threads."""

    def __init__(self, gate: Gate, seed: int) -> None:
        self.gate = gate
        self.seed = seed
        self.kinds: Counter[str] = Counter()
        self._tls = {
            version: _context(gate.certificates, version)
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        }

    def run(self, first: int, count: int) -> None:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self.attempt, range(first, first + count)))

    def attempt(self, number: int) -> None:
        dice = random.Random(f"{self.seed}/{number}")
        kind, act = dice.choice(_KINDS)
        self.kinds[kind] += 1
        # The server may refuse at any moment, in the words of either TLS or TCP.
        with suppress(*BROKEN):
            act(self, dice)

    # -- connections --------------------------------------------------------------------------------------------

    def plaintext(self, dice: random.Random) -> None:
        with self.gate.dial("inside") as wire:
            self._talk(wire, dice)

    def encrypted(self, dice: random.Random) -> None:
        version = dice.choice(list(self._tls))
        listener = dice.choice(["outside", "mutual"])
        with self._tls[version].wrap_socket(self.gate.dial(listener), server_hostname="127.0.0.1") as wire:
            self._talk(wire, dice)

    def plaintext_to_tls(self, dice: random.Random) -> None:
        with self.gate.dial(dice.choice(["outside", "mutual"])) as wire:
            self._talk(wire, dice)

    def tls_to_plaintext(self, dice: random.Random) -> None:
        with self.gate.dial("inside") as wire:
            wire.sendall(dice.choice([self.gate.hello, mutated(self.gate.hello, dice)]))
            self._talk(wire, dice)

    def broken_handshake(self, dice: random.Random) -> None:
        """A hello that is mutated, repeated, or followed by early data."""
        hello = self.gate.hello
        early = with_early_data(hello) + record(self._request(dice))
        with self.gate.dial(dice.choice(["outside", "mutual"])) as wire:
            wire.sendall(dice.choice([mutated(hello, dice), hello + hello, early, mutated(early, dice)]))
            self._talk(wire, dice)

    def broken_record(self, dice: random.Random) -> None:
        """A whole handshake, and then bytes below the encryption."""
        raw = self.gate.dial("outside")
        with raw.dup() as below, self._tls[dice.choice(list(self._tls))].wrap_socket(raw) as wire:
            wire.sendall(b"".join(self._frames(dice)))
            below.sendall(dice.choice([self.gate.hello, record(self._request(dice)), dice.randbytes(50)]))
            self._listen(wire)

    def _talk(self, wire: socket.socket, dice: random.Random) -> None:
        wire.settimeout(WAIT_SECONDS)
        for data in self._frames(dice):
            wire.sendall(data)
            if dice.random() < 0.3:
                with suppress(TimeoutError):
                    wire.recv(4096)
        wire.sendall(framed(60, 0, include_cluster_authorized_operations=False))
        self._listen(wire)

    def _listen(self, wire: socket.socket) -> None:
        wire.settimeout(WAIT_SECONDS)
        while wire.recv(65536):
            pass

    # -- bytes --------------------------------------------------------------------------------------------------

    def _frames(self, dice: random.Random) -> Iterator[bytes]:
        for _ in range(dice.randint(1, 6)):
            chance = dice.random()
            if chance < 0.25:
                yield from self._login(dice)
            elif chance < 0.65:
                yield self._request(dice)
            elif chance < 0.8:
                yield mutated(self._request(dice), dice)
            elif chance < 0.9:
                whole = self._request(dice)
                yield whole[: dice.randrange(1, len(whole))]
            else:
                size = dice.choice([-1, 0, 1, 131_073, 200_000, 2**31 - 1])
                yield LENGTH.pack(size) + dice.randbytes(dice.randint(0, 100))

    def _login(self, dice: random.Random) -> Iterator[bytes]:
        """The steps of a login in their order, as far as a stranger can make them."""
        mechanism = dice.choice(MECHANISMS)
        said = self.gate.recorded.get(mechanism) or [self._message(dice)]
        yield framed(17, 1, mechanism=mechanism)
        for message in said:
            yield framed(36, dice.randint(0, 2), auth_bytes=message if dice.random() < 0.7 else self._message(dice))

    def _request(self, dice: random.Random) -> bytes:
        chance = dice.random()
        if chance < 0.3:
            name = dice.choice([*MECHANISMS, "GSSAPI", "", "PLAIN\0", "scram-sha-256", "x" * 1000])
            return framed(17, dice.choice([0, 1, 1, 1]), mechanism=name)
        if chance < 0.7:
            return framed(36, dice.randint(0, 2), auth_bytes=self._message(dice))
        key, version, fields = dice.choice(PROTECTED)
        return framed(key, version, **fields)

    def _message(self, dice: random.Random) -> bytes:
        """A message of some mechanism, right in form or mutated, without the secret."""
        chosen = dice.choice(
            [
                *MESSAGES,
                *(message for said in self.gate.recorded.values() for message in said),
                f"n,,\x01auth=Bearer {dice.choice(self.tokens)}\x01\x01".encode(),
                dice.randbytes(dice.randint(0, 300)),
            ]
        )
        return chosen if dice.random() < 0.7 or not chosen else mutated(chosen, dice)

    @property
    def tokens(self) -> list[str]:
        right = self.gate.issuer.token(exp=time.time() - 3600)
        unsigned = f"{right.rpartition('.')[0]}."
        return [right, unsigned, self.gate.issuer.token(aud="other"), "a.b.c", ""]


_KINDS: Final[list[tuple[str, Callable[[Fuzz, random.Random], None]]]] = [
    ("plaintext", Fuzz.plaintext),
    ("plaintext", Fuzz.plaintext),
    ("plaintext", Fuzz.plaintext),
    ("encrypted", Fuzz.encrypted),
    ("encrypted", Fuzz.encrypted),
    ("plaintext to TLS", Fuzz.plaintext_to_tls),
    ("TLS to plaintext", Fuzz.tls_to_plaintext),
    ("broken handshake", Fuzz.broken_handshake),
    ("broken record", Fuzz.broken_record),
]

MESSAGES: Final = (
    b"",
    b"\x01",
    b"\0alice\0wrong",
    b"\0alice\0",
    b"alice\0alice\0wrong",
    b"admin\0alice\0wrong",
    b"\0" * 500,
    b"n,,n=alice,r=abc",
    b"y,,n=alice,r=abc",
    b"p=tls-unique,,n=alice,r=abc",
    b"n,a=alice,n=alice,r=abc",
    b"n,,n=" + b"a" * 1000 + b",r=abc",
    b"c=biws,r=abc,p=AAAA",
    b"c=biws,r=,p=",
    b"n,,\x01auth=Bearer \x01\x01",
    b"n,,\x01auth=Basic YWxpY2U6eA==\x01\x01",
)
PROTECTED: Final[list[tuple[int, int, dict[str, Any]]]] = [
    (18, 0, {}),
    (3, 1, {"topics": None}),
    (22, 1, {"transactional_id": None, "transaction_timeout": 1}),
    (30, 2, {"creations": []}),
    (51, 0, {"deletions": [{"name": "alice", "mechanism": 1}], "upsertions": []}),
    (60, 0, {"include_cluster_authorized_operations": False}),
    (10_000, 0, {"group": "g", "wait_ms": 0, "session_ms": 0, "release": [], "resources": []}),
]


def framed(key: int, version: int, /, **fields: Any) -> bytes:
    shape = 1 if (key, version) == (17, 0) else version  # the same bytes; we do not speak v0
    body = frame.request_head(key, shape, 7, "stranger") + messages.encode_request(key, shape, fields)
    return LENGTH.pack(len(body)) + body[:2] + version.to_bytes(2, "big") + body[4:]


def record(data: bytes) -> bytes:
    """Return a TLS record that claims to be encrypted data."""
    return b"\x17\x03\x03" + len(data).to_bytes(2, "big") + data


def mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 6)):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed[: dice.randrange(1, len(changed) + 1)] if dice.random() < 0.3 else changed)


def _context(certificates: Certificates, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    return context


class Bystander:
    """A client of the open listener, which writes one record after the other while strangers try."""

    def __init__(self, gate: Gate) -> None:
        host, port = gate.addresses["open"]
        self._client = RawClient(f"{host}:{port}")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.answers = 0
        self.lost = ""

    def _write(self) -> None:
        written = batch([b"x"])
        while not self._done.is_set() and not self.lost:
            try:
                assert self._client.produce("bystander", written).error == 0
            except Exception as error:
                self.lost = repr(error)
            else:
                self.answers += 1

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._client.close()


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss / 2**20)


def besiege(gate: Gate, seed: int, *, count: int = 0, seconds: float = 0.0, most_mib: float) -> None:
    """Make `count` attempts, or as many as fit into `seconds`. Nobody gets in, a bystander is served throughout, memory
    stays within `most_mib`, and no connection is left."""
    fuzz = Fuzz(gate, seed)
    done = 200
    with Bystander(gate) as bystander:
        fuzz.run(0, done)  # until what is loaded once is loaded
        before = resident_mib()
        ends = time.monotonic() + seconds
        while done < count or time.monotonic() < ends:
            fuzz.run(done, 200)
            done += 200
    grown = resident_mib() - before
    print(
        f"seed {seed}: {done} connections ({dict(fuzz.kinds)}), {len(gate.let_in)} let in, "
        f"{bystander.answers} answers to the bystander, {grown:+.0f} MiB"
    )
    assert not gate.let_in, f"seed {seed}: {gate.let_in[:5]}"
    assert not bystander.lost and bystander.answers
    assert grown < most_mib
    deadline = time.monotonic() + 30
    while gate.listeners[0]._pending or gate.listeners[0].connections:
        assert time.monotonic() < deadline, "connections of strangers are left"
        time.sleep(0.02)  # the patrol that closes them tells nobody
