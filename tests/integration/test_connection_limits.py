"""Limits on connections: per address, per user, before the login, and per second."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.server.config.listener import ListenerConfig
from tests.support.certificates import make
from tests.support.logins import add_users, log_in, login_listener
from tests.support.quotas import alter
from tests.support.raw import API_VERSIONS, ConnectionEnded, RawClient

pytestmark = pytest.mark.integration

SECRETS = {"alice": "alice-secret", "bob": "bob-secret"}


def is_served(client: RawClient) -> bool:
    try:
        return bool(client.call(API_VERSIONS, 0).error_code == ErrorCode.NONE)
    except (ConnectionEnded, ConnectionError):
        return False


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def is_let_in(address: str) -> bool:
    with RawClient(address) as client:
        return is_served(client)


def has_room(address: str) -> bool:
    """Tell if alice can log in."""
    with RawClient(address) as client:
        try:
            client.call(17, 1, mechanism="PLAIN")
            client.call(36, 2, auth_bytes=b"\0alice\0alice-secret")
            return is_served(client)
        except (ConnectionEnded, ConnectionError):
            return False


def test_an_address_has_a_limited_number_of_connections(caplog: pytest.LogCaptureFixture) -> None:
    with fencepost.Server(max_connections_per_address=2) as server, ExitStack() as stack:
        first, second = (stack.enter_context(RawClient(server.address)) for _ in range(2))
        assert is_served(first) and is_served(second)
        assert not is_let_in(server.address)
        assert "max_connections_per_address (2) of 127.0.0.1 are open" in caplog.text
        first.close()
        until(lambda: is_let_in(server.address))
        assert is_served(second)


def test_a_user_has_a_limited_number_of_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_users(tmp_path, SECRETS)
    with fencepost.Server(tmp_path, listeners=login_listener("PLAIN"), max_connections_per_user=2) as server:
        with log_in(server.address, "alice", "alice-secret") as first, log_in(server.address, "alice", "alice-secret"):
            assert not has_room(server.address)
            assert "max_connections_per_user (2) of User:alice are open" in caplog.text
            log_in(server.address, "bob", "bob-secret").close()
            again = first.call(17, 1, mechanism="PLAIN")  # to log in again is no further connection
            assert again.error_code == ErrorCode.NONE
            assert first.call(36, 2, auth_bytes=b"\0alice\0alice-secret").error_code == ErrorCode.NONE
            assert is_served(first)
        until(lambda: has_room(server.address))


def test_those_who_do_not_log_in_make_way_for_others_of_their_address(tmp_path: Path) -> None:
    add_users(tmp_path, SECRETS)
    settings = {"max_pending_connections_per_address": 2, "authentication_timeout_ms": 3_600_000}
    with (
        fencepost.Server(tmp_path, listeners=login_listener("PLAIN"), **settings) as server,  # type: ignore[arg-type]
        log_in(server.address, "alice", "alice-secret") as member,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(RawClient(server.address)) for _ in range(3)]
        assert is_served(silent[1]) and is_served(silent[2])
        assert silent[0].is_closed_by_server()
        log_in(server.address, "bob", "bob-secret").close()
        assert is_served(member)


def test_an_address_opens_a_limited_number_of_connections_per_second(caplog: pytest.LogCaptureFixture) -> None:
    with fencepost.Server(max_connection_rate_per_address=1, quota_burst_ms=3_000) as server:
        let_in = 0
        while is_let_in(server.address):
            let_in += 1
        assert let_in >= 3
        assert "127.0.0.1 opens more than 1 connections per second" in caplog.text
        until(lambda: is_let_in(server.address))


def test_a_quota_of_an_address_replaces_the_setting() -> None:
    with (
        fencepost.Server(max_connection_rate_per_address=1, quota_burst_ms=3_000) as server,
        RawClient(server.address) as client,
    ):
        assert alter(client, {"ip": "127.0.0.1"}, connection_creation_rate=100_000) is ErrorCode.NONE
        assert all(is_let_in(server.address) for _ in range(20))
        assert alter(client, {"ip": "127.0.0.1"}, connection_creation_rate=None) is ErrorCode.NONE
        assert alter(client, {"ip": None}, connection_creation_rate=1) is ErrorCode.NONE
        assert not all(is_let_in(server.address) for _ in range(20))


def test_tls_connections_are_counted_before_their_handshake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    certificates = make(tmp_path)
    listener = ListenerConfig(name="secure", address="127.0.0.1:0", protocol="ssl", certificate=certificates.server)
    with (
        fencepost.Server(listeners=(listener,), max_connection_rate_per_address=1, quota_burst_ms=2_000) as server,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(RawClient(server.address)) for _ in range(10)]
        assert silent[-1].is_closed_by_server()
        assert "127.0.0.1 opens more than 1 connections per second" in caplog.text
