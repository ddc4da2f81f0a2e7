"""Commands that ask the HTTP port: where a login may go."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fencepost.cli.http_get import HttpServer
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit

SECURITY = ClientSettings.from_config(
    {
        "bootstrap.servers": "127.0.0.1:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "alice-secret",
    }
).security
NOBODY = ClientSettings.from_config({"bootstrap.servers": "127.0.0.1:9092"}).security


@pytest.mark.parametrize("address", ["log.example.com:9644", "http://192.0.2.1:9644", "[2001:db8::1]:9644"])
def test_a_login_does_not_go_to_another_machine_in_clear(address: str) -> None:
    with pytest.raises(ConfigError, match="the login would go there in clear: take https://") as refused:
        HttpServer(address, SECURITY)
    assert "alice" not in str(refused.value)
    HttpServer(address, SECURITY, logs_in=False)
    HttpServer(address, NOBODY)


@pytest.mark.parametrize("address", ["127.0.0.1:9644", "localhost:9644", "[::1]:9644", "https://log.example.com:9644"])
def test_a_login_goes_to_this_machine_and_by_https(address: str) -> None:
    HttpServer(address, SECURITY)


@pytest.mark.parametrize("logs_in", [True, False])
def test_pages_for_everybody_are_asked_for_without_a_login(logs_in: bool) -> None:
    heard: list[str | None] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words: object) -> None:
            """Stay silent."""

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        page = HttpServer(f"127.0.0.1:{server.server_port}", SECURITY, logs_in=logs_in).get("/healthz", seconds=30)
        serving.join()
    assert page.status == 200
    assert [each is not None for each in heard] == [logs_in]
