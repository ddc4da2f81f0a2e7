"""People who log in at the HTTP port with the form: sessions, cookies, and forms of strangers."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import pytest

import fencepost
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.errors import FencepostError
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.http import access
from fencepost.server.http.access import HttpClient, HttpSessions
from fencepost.server.http.console.rendering import render
from fencepost.server.net.session import Session
from tests.support.certificates import make
from tests.support.clock import HandWoundClock
from tests.support.http_client import ANY, basic, get
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.integration

PASSWORD = "alice-secret"


class Browser:
    """A browser without any code: it keeps cookies, follows no redirects, and names its origin."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.cookies: dict[str, str] = {}
        self.set_cookie = ""
        self._context = context
        self.host = "127.0.0.1"
        """The address it has in the network."""

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> tuple[int, str]:
        scheme, _, host = self.url.partition("://")
        if scheme == "https":
            line: http.client.HTTPConnection = http.client.HTTPSConnection(host, timeout=30, context=self._context)
        else:
            line = http.client.HTTPConnection(host, timeout=30, source_address=(self.host, 0))
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            line.request(method, path, body, {"Cookie": cookies, **headers} if cookies else dict(headers))
            answer = line.getresponse()
            text = answer.read().decode()
            self.set_cookie = answer.getheader("set-cookie", "")
        finally:
            line.close()
        if self.set_cookie:
            name, _, value = self.set_cookie.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return answer.status, text

    def get(self, path: str) -> tuple[int, str]:
        return self._ask("GET", path, None, {})

    def post(self, path: str, *, origin: str | None = "", **fields: str) -> int:
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if origin is not None:
            headers["Origin"] = origin or self.url
        return self._ask("POST", path, urlencode(fields), headers)[0]

    def log_in(self, user: str = "alice", password: str = PASSWORD) -> int:
        return self.post("/login", user=user, password=password)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fencepost.Server]:
    add_users(tmp_path / "data", {"admin": "admin-secret", "alice": PASSWORD})
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY, audit_file=tmp_path / "audit.log",
    ) as started:  # fmt: skip
        yield started


def test_a_login_gives_a_session_until_the_logout(server: fencepost.Server) -> None:
    browser = Browser(server.http)
    assert browser.get("/")[0] == 303
    status, page = browser.get("/login")
    assert (status, 'action="/login"' in page) == (200, True)
    assert browser.get("/api/v1/topics")[0] == 401
    assert browser.log_in() == 303
    assert re.fullmatch(r"fencepost=[\w-]{43}; HttpOnly; Max-Age=28800; Path=/; SameSite=strict", browser.set_cookie)
    assert "User:alice" in browser.get("/")[1]
    assert browser.get("/api/v1/topics")[0] == 200
    assert browser.get("/metrics")[0] == 403
    with log_in(server.address, "admin", "admin-secret") as client:
        create_acls(client, [grant("alice", ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)])
    assert browser.get("/metrics")[0] == 200
    kept = dict(browser.cookies)
    assert browser.post("/logout") == 303
    browser.cookies = kept  # the server has forgotten the session, whatever the browser keeps
    assert browser.get("/api/v1/topics")[0] == 401


def test_the_page_to_log_in_is_made_once_for_all_strangers(
    server: fencepost.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def note(template: str, **values: object) -> str:
        made.append(template)
        return render(template, **values)

    monkeypatch.setattr("fencepost.server.http.console.routes.render", note)
    for number in range(5):
        status, page = Browser(server.http).get(f"/login?next=/topics/{number}%22%3E%3Cscript")
        assert status == 200
        assert f'name="next" value="/topics/{number}&quot;&gt;&lt;script"' in page
    assert made == ["login.html"]
    assert "wrong user" in Browser(server.http)._ask("POST", "/login", "user=x&password=y", {
        "Content-Type": "application/x-www-form-urlencoded", "Origin": server.http,
    })[1]  # fmt: skip
    assert made == ["login.html"] * 2


def test_a_form_that_another_site_sends_is_refused(server: fencepost.Server) -> None:
    browser = Browser(server.http)
    for origin in ("http://evil.example", "null", server.http.replace("http:", "https:"), None):
        assert browser.post("/login", origin=origin, user="alice", password=PASSWORD) == 403
    assert not browser.cookies
    assert browser.log_in() == 303
    assert browser.post("/logout", origin="http://evil.example") == 403
    assert browser.get("/api/v1/topics")[0] == 200


def test_a_failed_login_is_audited_and_says_nothing_about_the_user(server: fencepost.Server, tmp_path: Path) -> None:
    browser = Browser(server.http)
    pages = set()
    for user in ("alice", "nobody"):
        assert browser.log_in(user, "wrong") == 401
        pages.add(browser.get("/login")[1])
    assert len(pages) == 1
    assert not browser.cookies
    server.stop()
    events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    failed = [event for event in events if event["event"] == "login.failed"]
    assert {event["principal"] for event in failed} == {"User:alice", "User:nobody"}


@pytest.mark.parametrize(
    ("status", "fields"), [(400, {}), (400, {"user": "alice"}), (413, {"user": "a", "password": "x" * 20_000})]
)
def test_a_form_without_user_and_password_is_a_bad_request(
    server: fencepost.Server, status: int, fields: dict[str, str]
) -> None:
    assert Browser(server.http).post("/login", **fields) == status


def test_a_form_that_does_not_come_keeps_no_connection(
    server: fencepost.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.server.http.console.routes._FORM_SECONDS", 0.2)
    host, _, port = server.http.removeprefix("http://").rpartition(":")
    head = f"POST /login HTTP/1.1\r\nHost: {host}:{port}\r\nOrigin: {server.http}\r\nContent-Length: 100\r\n\r\nuser="
    with socket.create_connection((host, int(port)), timeout=30) as silent:
        silent.sendall(head.encode())
        answer = b""
        while more := silent.recv(1000):
            answer += more
    assert answer.startswith(b"HTTP/1.1 408 ")


def admin_of(server: fencepost.Server) -> fencepost.Admin:
    from fencepost.client.cluster.settings import ClientSettings

    config = {"bootstrap.servers": server.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    config |= {"sasl.username": "admin", "sasl.password": "admin-secret"}
    return fencepost.Admin(ClientSettings.from_config(config))


def test_a_new_password_ends_the_sessions_of_the_old_one(server: fencepost.Server) -> None:
    browser = Browser(server.http)
    assert browser.log_in() == 303
    with admin_of(server) as admin:
        admin.set_user_password("alice", "another-secret")
    assert browser.get("/api/v1/topics")[0] == 401
    assert browser.log_in("alice", "another-secret") == 303
    assert browser.get("/api/v1/topics")[0] == 200


def test_a_removed_user_has_no_session_and_no_login_any_more(server: fencepost.Server) -> None:
    """A program's password is not checked with every request, but it is of no use once the user is gone."""
    browser = Browser(server.http)
    assert browser.log_in() == 303
    url, login = f"{server.http}/api/v1/topics", basic("alice", PASSWORD)
    assert get(url, login).status == browser.get("/api/v1/topics")[0] == 200
    with admin_of(server) as admin:
        admin.remove_users(["alice"])
    assert get(url, login).status == browser.get("/api/v1/topics")[0] == 401


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is not an address of the machine")
def test_acls_that_name_a_host_are_about_the_request_and_not_the_login(server: fencepost.Server) -> None:
    allowed = grant("alice", ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
    with log_in(server.address, "admin", "admin-secret") as client:
        create_acls(client, [allowed._replace(host="127.0.0.1")])
    browser = Browser(server.http)
    assert browser.log_in() == 303
    assert browser.get("/metrics")[0] == 200
    browser.host = "127.0.0.2"
    assert browser.get("/metrics")[0] == 403
    assert browser.get("/api/v1/topics")[0] == 200
    browser.host = "127.0.0.1"
    assert browser.get("/metrics")[0] == 200


def test_under_tls_the_cookie_is_for_tls_and_this_host_only(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    add_users(tmp_path / "data", {"alice": PASSWORD})
    listener = ListenerConfig(
        name="tls", address=ANY, protocol="sasl_ssl", mechanisms=("PLAIN",), certificate=certificates.server
    )
    with fencepost.Server(
        tmp_path / "data", listeners=(listener,), authorization_enabled=True, http_address=ANY, http_listener="tls"
    ) as started:
        browser = Browser(started.http, ssl.create_default_context(cafile=certificates.authority))
        assert browser.log_in() == 303
        assert browser.set_cookie.startswith("__Host-fencepost=")
        assert browser.set_cookie.endswith("; Secure")
        assert browser.get("/api/v1/topics")[0] == 200


def test_without_authorization_there_is_no_form() -> None:
    with fencepost.Server(http_address=ANY) as started:
        browser = Browser(started.http)
        assert "<form" not in browser.get("/")[1]
        assert browser.log_in() == 303
        assert not browser.cookies


def test_a_login_works_through_a_proxy_that_ends_tls(tmp_path: Path) -> None:
    """The browser speaks HTTPS with the proxy, and names that origin; the proxy passes the Host header on."""
    add_users(tmp_path / "data", {"alice": PASSWORD})
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True, http_address=ANY,
        http_public_url="https://log.example.com",
    ) as started:  # fmt: skip
        browser = Browser(started.http)
        form = urlencode({"user": "alice", "password": PASSWORD})

        def post(path: str, host: str, origin: str) -> int:
            headers = {"Content-Type": "application/x-www-form-urlencoded", "Host": host, "Origin": origin}
            return browser._ask("POST", path, form, headers)[0]

        assert post("/login", "log.example.com", "https://evil.example") == 403
        assert post("/login", "log.example.com", "http://log.example.com") == 403
        assert post("/login", "evil.example", "https://log.example.com") == 403
        assert post("/login", "log.example.com", "https://log.example.com") == 303
        assert re.match(r"__Host-fencepost=.*; Secure$", browser.set_cookie)
        assert browser._ask("GET", "/api/v1/topics", None, {"Host": "log.example.com"})[0] == 200
        assert Browser(started.http).log_in() == 303  # and without the proxy, as ever


def test_the_public_name_is_no_stranger_to_a_server_without_authorization() -> None:
    with fencepost.Server(http_address=ANY, http_public_url="https://log.example.com") as started:
        assert get(f"{started.http}/metrics", {"Host": "log.example.com"}).status == 200
        assert get(f"{started.http}/metrics", {"Host": "other.example.com"}).status == 403


@pytest.mark.parametrize("wrong", ["log.example.com", "https://log.example.com/path", "ftp://a", "https://A.example"])
def test_a_wrong_public_address_is_said(wrong: str) -> None:
    with pytest.raises(FencepostError, match=r"http\.public_url must be https://HOST"):
        fencepost.Server(http_address=ANY, http_public_url=wrong)


def client(peer: str) -> HttpClient:
    return HttpClient(cast("Session", None), peer)


def test_sessions_end_by_time_and_their_number_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandWoundClock()
    kept = HttpSessions(clock)
    key = kept.begin(client("alice"), "alice", None)
    clock.advance(access.SESSION_SECONDS - 1)
    assert kept.find(key) == (client("alice"), None)
    clock.advance(1)
    assert kept.find(key) is None
    monkeypatch.setattr(access, "MOST_SESSIONS", 3)
    keys = [kept.begin(client(f"user {number}"), f"user {number}", None) for number in range(5)]
    assert [kept.find(key) is not None for key in keys] == [False, False, True, True, True]
    assert len(kept) == 3


def test_a_user_pushes_only_their_own_sessions_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_OF_A_USER", 3)
    kept = HttpSessions(HandWoundClock())
    other = kept.begin(client("elsewhere"), "bob", None)
    keys = [kept.begin(client(f"browser {number}"), "alice", None) for number in range(10)]
    assert kept.find(other) == (client("elsewhere"), None)
    assert [number for number, key in enumerate(keys) if kept.find(key) is not None] == [7, 8, 9]
    kept.end(keys[8])
    keys += [kept.begin(client("browser 10"), "alice", None)]
    assert [number for number, key in enumerate(keys) if kept.find(key) is not None] == [7, 9, 10]
    assert len(kept) == 4


def test_a_user_who_logs_in_again_and_again_logs_nobody_else_out(server: fencepost.Server) -> None:
    bystander, first = Browser(server.http), Browser(server.http)
    assert bystander.log_in("admin", "admin-secret") == 303
    assert first.log_in() == 303
    for _ in range(access.MOST_OF_A_USER):
        assert Browser(server.http).log_in() == 303
    assert bystander.get("/api/v1/topics")[0] == 200
    assert first.get("/api/v1/topics")[0] == 401
