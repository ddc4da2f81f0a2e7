"""Reloads of a running server: each limit that can change does, no connection is closed, and files are exchanged."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fencepost import Producer
from fencepost.errors import ErrorCode, FencepostError
from tests.support.batches import batch
from tests.support.certificates import make
from tests.support.configured_server import Serving, serve, write_config
from tests.support.logins import add_users, log_in
from tests.support.quotas import alter
from tests.support.raw import API_VERSIONS, ConnectionEnded, RawClient

pytestmark = pytest.mark.integration

LOGIN = "[listeners.inside]\naddress = '127.0.0.1:0'\nprotocol = 'sasl_plaintext'\nmechanisms = ['PLAIN']\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def is_served(client: RawClient) -> bool:
    try:
        return bool(client.call(API_VERSIONS, 0).error_code == ErrorCode.NONE)
    except (ConnectionEnded, ConnectionError):
        return False


def is_let_in(address: str) -> bool:
    with RawClient(address) as client:
        return is_served(client)


def can_log_in(address: str, name: str = "alice") -> bool:
    with RawClient(address) as client:
        try:
            client.call(17, 1, mechanism="PLAIN")
            client.call(36, 2, auth_bytes=f"\0{name}\0{name}-secret".encode())
            return is_served(client)
        except (ConnectionEnded, ConnectionError):
            return False


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the server does after it has noticed that a client is gone."""
    while not condition():
        pass


def applied(serving: Serving) -> list[str]:
    outcome = serving.reload()
    assert outcome["needs_restart"] == outcome["mistakes"] == []
    return outcome["applied"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def page(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_a_reload_changes_the_connections_of_an_address_and_closes_none(file: Path) -> None:
    write_config(file, "")
    with serve(file) as serving, ExitStack() as stack:
        kept = [stack.enter_context(RawClient(serving.address)) for _ in range(5)]
        assert all(map(is_served, kept))
        write_config(file, "max_connections_per_address = 3")
        assert applied(serving) == ["max_connections_per_address"]
        assert not is_let_in(serving.address)
        assert all(map(is_served, kept))
        write_config(file, "max_connections_per_address = 30")
        assert applied(serving) == ["max_connections_per_address"]
        assert is_let_in(serving.address)


def test_a_reload_changes_the_rate_of_new_connections(file: Path) -> None:
    write_config(file, "max_connection_rate_per_address = 1\nquota_burst_ms = 1000")
    with serve(file) as serving:
        until(lambda: not is_let_in(serving.address))
        write_config(file, "max_connection_rate_per_address = 1000000\nquota_burst_ms = 1000")
        assert applied(serving) == ["max_connection_rate_per_address"]
        until(lambda: is_let_in(serving.address))
        assert all(is_let_in(serving.address) for _ in range(20))


def test_a_reload_changes_the_connections_of_a_user(file: Path) -> None:
    add_users(file.parent / "kept", {"alice": "alice-secret", "bob": "bob-secret"})
    write_config(file, "max_connections_per_user = 1", LOGIN)
    with serve(file) as serving, log_in(serving.address, "alice", "alice-secret") as first:
        assert not can_log_in(serving.address)
        write_config(file, "max_connections_per_user = 2", LOGIN)
        assert applied(serving) == ["max_connections_per_user"]
        with log_in(serving.address, "alice", "alice-secret") as second:
            write_config(file, "max_connections_per_user = 1", LOGIN)
            assert applied(serving) == ["max_connections_per_user"]
            assert not can_log_in(serving.address)
            assert can_log_in(serving.address, "bob")
            assert is_served(first) and is_served(second)


def test_a_reload_changes_the_limits_of_those_who_do_not_log_in(file: Path) -> None:
    add_users(file.parent / "kept", {"alice": "alice-secret"})
    patient = "authentication_timeout_ms = 3600000"
    write_config(file, f"{patient}\nmax_pending_connections_per_address = 50", LOGIN)
    with serve(file) as serving, ExitStack() as stack:
        silent = [stack.enter_context(RawClient(serving.address)) for _ in range(3)]
        assert all(map(is_served, silent))
        write_config(file, f"{patient}\nmax_pending_connections_per_address = 2", LOGIN)
        assert applied(serving) == ["max_pending_connections_per_address"]
        stack.enter_context(RawClient(serving.address))
        assert silent[0].is_closed_by_server()
        write_config(file, "authentication_timeout_ms = 1\nmax_pending_connections_per_address = 2", LOGIN)
        assert applied(serving) == ["authentication_timeout_ms"]
        assert silent[-1].is_closed_by_server()


def test_a_reload_changes_how_much_of_a_quota_can_be_used_at_once(file: Path) -> None:
    write_config(file, "quota_burst_ms = 3600000")
    written = batch([b"x" * 10_000])
    with serve(file) as serving, RawClient(serving.address) as client:
        client.create_topic("limited")
        assert alter(client, {"client_id": "raw"}, producer_byte_rate=1000.0) is ErrorCode.NONE
        assert throttled(client, written) == 0  # a tenth of an hour's worth
        write_config(file, "quota_burst_ms = 1000")
        assert applied(serving) == ["quota_burst_ms"]
        assert throttled(client, written) > 0


def throttled(client: RawClient, written: bytes) -> int:
    """Write, and return the milliseconds that the server tells the client to wait."""
    client.send_produce("limited", written)
    _, answer = client.receive()
    throttle_ms: int = answer.throttle_ms
    return throttle_ms


def test_a_reload_exchanges_the_file_of_the_audit_log(file: Path) -> None:
    first, second = file.parent / "first.log", file.parent / "second.log"
    add_users(file.parent / "kept", {"alice": "alice-secret"})
    write_config(file, f"[audit]\nfile = '{first}'", LOGIN)
    with serve(file) as serving:
        log_in(serving.address, "alice", "alice-secret").close()
        write_config(file, f"[audit]\nfile = '{file.parent / 'nowhere' / 'a.log'}'", LOGIN)
        [mistake] = serving.reload(expect=1)["mistakes"]
        assert "nowhere" in mistake
        write_config(file, f"[audit]\nfile = '{second}'\nfile_bytes = 1000000", LOGIN)
        assert applied(serving) == ["audit.file", "audit.file_bytes"]
        assert not can_log_in(serving.address, "bob")
    before, after = lines(first), lines(second)
    assert {"server.started", "login.succeeded"} <= {row["event"] for row in before}
    assert [row["outcome"] for row in before if row["event"] == "config.reloaded"] == ["failure"]
    assert [row["principal"] for row in after if row["event"] == "login.failed"] == ["User:bob"]
    assert "login.failed" not in {row["event"] for row in before}
    assert after[-1]["event"] == "server.stopped"


def test_a_reload_switches_the_audit_log_off_and_on(file: Path) -> None:
    kept = file.parent / "audit.log"
    on = f"[audit]\nfile = '{kept}'"
    write_config(file, on)
    with serve(file) as serving:
        write_config(file, "")
        assert applied(serving) == ["audit.file"]
        before = lines(kept)
        write_config(file, "max_groups = 7")
        assert applied(serving) == ["max_groups"]
        assert lines(kept) == before
        write_config(file, f"max_groups = 7\n{on}")
        assert applied(serving) == ["audit.file"]
    assert lines(kept)[-1]["event"] == "server.stopped"


def test_a_reload_changes_the_series_of_the_http_port_but_not_the_port(file: Path) -> None:
    http = "[http]\naddress = '127.0.0.1:0'\n"
    series = 'kafka_topic_partition_current_offset{topic="orders",partition="0"}'
    write_config(file, f"{http}max_series = 1000")
    with serve(file) as serving, Producer(serving.address) as producer:
        producer.send("orders", b"1").result(30)
        assert series in page(f"{serving.ready['http']}/metrics")
        write_config(file, f"{http}max_series = 1")
        assert applied(serving) == ["http.max_series"]
        assert series not in page(f"{serving.ready['http']}/metrics")
        write_config(file, "[http]\naddress = '127.0.0.2:0'\nmax_series = 1")
        assert serving.reload() == {"applied": [], "needs_restart": ["http.address"], "mistakes": []}
        assert page(f"{serving.ready['http']}/healthz") == "ok\n"


def peer_serial(address: str, authority: Path) -> str:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authority)
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        return str((client.getpeercert() or {})["serialNumber"])


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"], ids=["changed", "replaced"])
def test_the_http_port_follows_its_listener_through_a_reload(file: Path, address: str) -> None:
    """With the same address the listener keeps its socket; with another one it is closed and a new one opened."""
    certificates = make(file.parent)
    pairs = [certificates.issue("first"), certificates.issue("second")]

    def configure(number: int, address: str) -> None:
        pair = pairs[number]
        files = f"certificate = '{pair.certificate}'\nkey = '{pair.key}'"
        listener = f"[listeners.tls]\naddress = '{address}'\nprotocol = 'ssl'\n{files}\n"
        write_config(file, "[http]\naddress = '127.0.0.1:0'\nlistener = 'tls'", listener)

    configure(0, "127.0.0.1:0")
    with serve(file) as serving:
        http = serving.ready["http"].removeprefix("https://")
        old = peer_serial(http, certificates.authority)
        assert peer_serial(serving.address, certificates.authority) == old
        configure(1, address)
        assert applied(serving) == ["listeners.tls"]
        new = peer_serial(http, certificates.authority)
        assert new != old
        if address == "127.0.0.1:0":
            assert peer_serial(serving.address, certificates.authority) == new
        write_config(file, "[http]\naddress = '127.0.0.1:0'\nlistener = 'tls'")
        [mistake] = serving.reload(expect=1)["mistakes"]
        assert "http.listener must name a listener with TLS" in mistake
        assert peer_serial(http, certificates.authority) == new


def test_reloads_with_a_thousand_connections_under_load_drop_none(file: Path) -> None:
    """The limits fall below what is open, and the listener's settings change, while producers write."""
    write_config(file, "")
    failures: list[BaseException] = []
    done = threading.Event()
    with serve(file) as serving, ExitStack() as stack:
        quiet = [stack.enter_context(RawClient(serving.address)) for _ in range(1000)]
        assert all(map(is_served, quiet))
        loaded = threading.Barrier(5)

        def load() -> None:
            try:
                with Producer(serving.address) as producer:
                    producer.send("load", b"x" * 1000).result(60)
                    loaded.wait(60)
                    while not done.is_set():
                        producer.send("load", b"x" * 1000).result(60)
            except (FencepostError, threading.BrokenBarrierError) as error:
                failures.append(error)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        loaded.wait(60)
        try:
            for number in range(3):
                listener = f"[listeners.inside]\naddress = '127.0.0.1:0'\nadvertise = '127.0.0.1:{9000 + number}'\n"
                limits = f"max_connections_per_address = {10 + number}\nmax_connections = {20 + number}"
                write_config(file, limits, listener)
                assert applied(serving) == ["max_connections", "max_connections_per_address", "listeners.inside"]
                assert not is_let_in(serving.address)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert failures == []
        assert all(map(is_served, quiet))
