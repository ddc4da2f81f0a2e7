"""Our server with TLS and mutual TLS: every client of ours, right and wrong certificates, reloads under load."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost import Admin, Producer, Reader
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import FencepostError, Unreachable
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.net.connection import Connection
from fencepost.server.net.listener import Listener
from tests.support.certificates import Certificates, Pair, make

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def alice(certificates: Certificates) -> Pair:
    return certificates.issue("alice")


def listeners(certificates: Certificates) -> tuple[ListenerConfig, ...]:
    return (
        ListenerConfig(name="tls", address="127.0.0.1:0", protocol="ssl", certificate=certificates.server),
        certificates.mutual_listener(),
        ListenerConfig(name="plain", address="127.0.0.1:0"),
    )


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[fencepost.Server]:
    with fencepost.Server(listeners=listeners(certificates), authentication_timeout_ms=60_000) as started:
        yield started


def configured(address: str, certificates: Certificates, client: Pair | None = None) -> dict[str, object]:
    config: dict[str, object] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.authority),
    }
    if client is not None:
        config |= {"ssl.certificate.location": str(client.certificate), "ssl.key.location": str(client.key)}
    return config


def context(certificates: Certificates, client: Pair | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=certificates.authority)
    if client is not None:
        made.load_cert_chain(client.certificate, client.key)
    return made


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 30)


def secured(address: str, certificates: Certificates) -> ssl.SSLSocket:
    return context(certificates).wrap_socket(dial(address), server_hostname="127.0.0.1")


@pytest.mark.parametrize("listener", ["tls", "mutual"])
def test_every_client_of_ours_gets_in(
    server: fencepost.Server, certificates: Certificates, alice: Pair, listener: str
) -> None:
    """With batches larger than a TLS record, and an answer larger than the socket's buffers."""
    config = configured(server.addresses[listener], certificates, alice if listener == "mutual" else None)
    values = [b"%d" % number * 2000 for number in range(3000)]
    with Producer.from_config({**config, "linger.ms": 5}, compression="none") as producer:
        for value in values:
            producer.send(f"via-{listener}", value)
    with Reader.from_config(config, f"via-{listener}", stop="latest") as reader:
        assert [record.value for record in reader] == values
    with Admin(ClientSettings.from_config(config)) as admin:
        assert admin.latest(f"via-{listener}") == {0: len(values)}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_spoken(
    server: fencepost.Server, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    made = context(certificates)
    made.minimum_version = made.maximum_version = version
    with made.wrap_socket(dial(server.addresses["tls"]), server_hostname="127.0.0.1") as spoken:
        assert spoken.version() == version.name.replace("_", ".")
        spoken.sendall(API_VERSIONS)
        assert len(spoken.recv(4)) == 4


API_VERSIONS = bytes.fromhex("0000000e0012000000000001000474657374")
"""ApiVersions v0 of the client `test`."""


def is_well(address: str) -> bool:
    with dial(address) as plain:
        plain.sendall(API_VERSIONS)
        return len(plain.recv(4)) == 4


def answers(address: str, made: ssl.SSLContext) -> bool:
    """Tell if the server answers a request. With TLS 1.3 a refused client learns it from its first read."""
    try:
        with made.wrap_socket(dial(address), server_hostname="127.0.0.1") as client:
            client.sendall(API_VERSIONS)
            return len(client.recv(4)) == 4
    except OSError:
        return False


class Lines:
    """The warnings of the server about closed connections."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def await_one(self, words: str) -> str:
        """Wait for a line with the words; fail if there is another."""
        ends = time.monotonic() + 30
        while time.monotonic() < ends:
            lines = [record.getMessage() for record in self._caplog.records if "closing" in record.getMessage()]
            if any(words in line for line in lines):
                (only,) = lines
                return only
            time.sleep(0.01)
        raise AssertionError(f"no line with {words!r}, but {[r.getMessage() for r in self._caplog.records]}")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.WARNING, "fencepost.server")
    return Lines(caplog)


def test_a_client_that_says_goodbye_gets_one_and_is_closed(
    server: fencepost.Server, certificates: Certificates
) -> None:
    """Some clients wait for it, such as asyncio's for up to 30 s."""
    with secured(server.addresses["tls"], certificates) as client:
        client.sendall(API_VERSIONS)
        left = int.from_bytes(client.recv(4))
        while left:
            left -= len(client.recv(left))
        client.settimeout(20)
        raw = client.unwrap()
        assert raw.recv(1) == b""
        raw.close()


WRONG: dict[str, tuple[Callable[[Certificates], Pair | None], str]] = {
    "none": (lambda _: None, "the client has no certificate, and client_certificate is 'required'"),
    "expired": (lambda made: made.issue("late", days=-1), "not accepted: certificate has expired"),
    "untrusted": (lambda made: made.issue("strange", authority="stranger"), "not accepted: unable to get local issuer"),
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_client_certificate_is_one_line_and_a_closed_connection(
    server: fencepost.Server, certificates: Certificates, lines: Lines, which: str
) -> None:
    make_pair, words = WRONG[which]
    made = context(certificates, make_pair(certificates))
    assert not answers(server.addresses["mutual"], made)
    assert "TLS handshake on listener mutual failed" in lines.await_one(words)
    assert is_well(server.addresses["plain"])


def test_our_client_says_why_it_is_not_let_in(
    server: fencepost.Server, certificates: Certificates, lines: Lines
) -> None:
    config = configured(server.addresses["mutual"], certificates)
    with Admin(ClientSettings.from_config(config)) as admin, pytest.raises(FencepostError, match="certificate"):
        admin.topics()
    lines.await_one("the client has no certificate")  # the next test expects no line but its own


def test_a_client_that_does_not_trust_the_server_is_one_line(
    server: fencepost.Server, certificates: Certificates, lines: Lines
) -> None:
    config = {**configured(server.addresses["tls"], certificates), "ssl.ca.location": str(certificates.stranger)}
    with Admin(ClientSettings.from_config(config)) as admin, pytest.raises(Unreachable, match="not trusted"):
        admin.topics()
    lines.await_one("the client does not trust the server's certificate")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (API_VERSIONS, "the client does not speak TLS"),
        (b"GET / HTTP/1.1\r\n\r\n", "the client speaks HTTP"),
    ],
)
def test_bytes_that_are_not_tls_are_one_line(server: fencepost.Server, lines: Lines, sent: bytes, words: str) -> None:
    with dial(server.addresses["tls"]) as stranger:
        stranger.sendall(sent)
        assert not stranger.recv(1000).startswith(b"\x00")
    lines.await_one(words)


def test_a_client_that_says_nothing_is_closed_in_time(certificates: Certificates, lines: Lines) -> None:
    config = listeners(certificates)[:1]
    with (
        fencepost.Server(listeners=config, authentication_timeout_ms=1000) as server,
        dial(server.address) as silent,
    ):
        assert silent.recv(1) == b""
        lines.await_one("not authenticated within 1 s")


def test_silent_clients_make_way_for_others(certificates: Certificates) -> None:
    config = listeners(certificates)[:1]
    with fencepost.Server(listeners=config, max_pending_connections=5, authentication_timeout_ms=3_600_000) as server:
        silent = [dial(server.address) for _ in range(20)]
        for _ in range(3):
            assert answers(server.address, context(certificates))
        assert [each.recv(1) for each in silent[:15]] == [b""] * 15  # the oldest were closed
        for each in silent:
            each.close()


def test_the_principal_is_the_subject_or_what_the_rules_make_of_it(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    opened = Listener.opened

    def note(self: Listener, connection: Connection) -> None:
        seen.append(str(connection.session.principal))
        opened(self, connection)

    monkeypatch.setattr(Listener, "opened", note)
    bob = certificates.issue("bob", subject="/C=DE/O=Example, Inc./OU=Services/CN=Bob")
    common = {
        "address": "127.0.0.1:0",
        "protocol": "ssl",
        "certificate": certificates.server,
        "client_ca": certificates.authority,
    }
    rules = "RULE:^CN=(.*?),OU=Services.*$/$1/L, RULE:^CN=alice$/A/"
    config = (
        ListenerConfig(name="whole", **common),  # type: ignore[arg-type]
        ListenerConfig(name="mapped", principal_mapping_rules=rules, **common),  # type: ignore[arg-type]
    )
    with fencepost.Server(listeners=config) as server:
        for listener, pair in [
            ("whole", bob),
            ("mapped", bob),
            ("mapped", certificates.issue("alice")),
            ("whole", None),
            ("mapped", certificates.issue("eve")),
        ]:
            is_known = pair is None or pair.certificate.stem != "eve"
            assert answers(server.addresses[listener], context(certificates, pair)) == is_known
    assert seen == ["User:CN=Bob,OU=Services,O=Example\\, Inc.,C=DE", "User:bob", "User:A", "User:ANONYMOUS"]


def replace(target: Path, source: Path) -> None:
    """Put a copy in place of a file, in one step."""
    copy = target.with_suffix(".new")
    shutil.copy(source, copy)
    os.replace(copy, target)


def serial(address: str, certificates: Certificates) -> str:
    with secured(address, certificates) as client:
        return str((client.getpeercert() or {})["serialNumber"])


def await_serial(address: str, certificates: Certificates, wanted: str) -> None:
    ends = time.monotonic() + 30
    while serial(address, certificates) != wanted:
        assert time.monotonic() < ends, "the new certificate is not used"
        time.sleep(0.05)


def test_changed_certificates_are_used_and_open_connections_stay(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = certificates.issue("first"), certificates.issue("second")
    pem, key = tmp_path / "server.pem", tmp_path / "server.key"
    shutil.copy(first.certificate, pem)
    shutil.copy(first.key, key)
    listener = ListenerConfig(name="tls", address="127.0.0.1:0", protocol="ssl", certificate=pem, key=key)
    with (
        fencepost.Server(listeners=(listener,)) as server,
        secured(server.address, certificates) as client,
        Producer.from_config(configured(server.address, certificates)) as producer,
    ):
        producer.send("t", b"before").result(30)
        old = serial(server.address, certificates)
        replace(pem, second.certificate)  # for a moment the key does not belong to it
        ends = time.monotonic() + 30
        while not server.health:
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert "the key does not belong to the certificate" in server.health[0].reason
        assert serial(server.address, certificates) == old
        replace(key, second.key)
        new = ssl_serial(second.certificate)
        await_serial(server.address, certificates, new)
        assert new != old
        assert server.health == ()
        producer.send("t", b"after").result(30)
        client.sendall(API_VERSIONS)
        assert len(client.recv(4)) == 4


def ssl_serial(pem: Path) -> str:
    return str(ssl._ssl._test_decode_cert(str(pem))["serialNumber"])  # type: ignore[attr-defined]
