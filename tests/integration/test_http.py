"""The HTTP port of a real server: health, readiness and metrics, and who may see them."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.errors import FencepostError
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.metrics.scrape import Scrapes
from tests.support.certificates import make
from tests.support.http_client import ANY, FullDisk, Metrics, basic, get
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[fencepost.Server]:
    with fencepost.Server(http_address=ANY) as started:
        yield started


def test_health_readiness_and_an_index(server: fencepost.Server) -> None:
    assert get(f"{server.http}/healthz")[:2] == (200, "ok\n")
    assert get(f"{server.http}/readyz")[:2] == (200, "ready\n")
    index = get(server.http)
    assert index.status == 200
    for path in re.findall('href="(/[^"]*)"', index.text):
        assert get(server.http + path).status == 200
    assert get(f"{server.http}/nothing").status == 404


def test_a_disk_without_room_makes_it_unready(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path, http_address=ANY, files=FullDisk()) as started:
        page = get(f"{started.http}/readyz")
        assert Metrics(started)("fencepost_disk_low") == 1
    assert page.status == 503
    assert "new records are rejected" in page.text


def test_a_store_that_cannot_commit_makes_it_unready(server: fencepost.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.server.http.app._PROBE", "INSERT INTO no_such_table VALUES (?)")
    page = get(f"{server.http}/readyz")
    assert page.status == 503
    assert "cannot write metadata" in page.text


def test_with_authorization_only_those_who_may_describe_the_cluster_see_metrics(tmp_path: Path) -> None:
    secrets = {"admin": "admin-secret", "prometheus": "scrape-secret", "mallory": "mallory-secret"}
    add_users(tmp_path / "data", secrets)
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY,
    ) as started:  # fmt: skip
        with log_in(started.address, "admin", secrets["admin"]) as client:
            create_acls(client, [grant("prometheus", ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)])
        url = f"{started.http}/metrics"
        asks = get(url)
        assert (asks.status, asks.headers["www-authenticate"].partition(" ")[0]) == (401, "Basic")
        for wrong in ("Basic", "Basic !", "Basic Og==", "Bearer abc", "Digest x"):
            assert get(url, {"Authorization": wrong}).status == 401, wrong
        for user in ("prometheus", "nobody"):
            assert get(url, basic(user, "wrong")).status == 401
        assert get(url, basic("mallory", secrets["mallory"])).status == 403
        for user in ("admin", "prometheus"):
            assert "kafka_brokers 1\n" in get(url, basic(user, secrets[user])).text
        assert get(f"{started.http}/healthz").status == get(f"{started.http}/readyz").status == 200


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/topics", "/debug/state"])
def test_a_web_page_that_calls_this_machine_its_own_sees_nothing(server: fencepost.Server, path: str) -> None:
    """DNS rebinding: the browser sends the page's own name to 127.0.0.1."""
    for host in ("evil.example", "evil.example:9644", "127.0.0.1.evil.example", "localhost.evil.example", "[", "x@y"):
        assert get(server.http + path, {"Host": host}).status == 403, host
    for host in ("localhost", "localhost:1", "LOCALHOST", "127.0.0.1:1", "[::1]:1", "fencepost.localhost"):
        assert get(server.http + path, {"Host": host}).status == 200, host


def test_the_port_takes_the_certificate_of_a_listener(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    listener = ListenerConfig(name="tls", address=ANY, protocol="ssl", certificate=certificates.server)
    with fencepost.Server(listeners=(listener,), http_address=ANY, http_listener="tls") as started:
        assert started.http.startswith("https://")
        trusting = ssl.create_default_context(cafile=certificates.authority)
        assert get(f"{started.http}/healthz", context=trusting).text == "ok\n"


def test_a_client_that_does_not_finish_its_tls_handshake_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of requests begins after the handshake, so the handshake has its own."""
    certificates = make(tmp_path)
    monkeypatch.setattr("fencepost.server.http.port.SILENT_SECONDS", 0.2)
    listener = ListenerConfig(name="tls", address=ANY, protocol="ssl", certificate=certificates.server)
    with fencepost.Server(listeners=(listener,), http_address=ANY, http_listener="tls") as started:
        host, port = started.http.removeprefix("https://").split(":")
        for begun in (b"", b"\x16\x03\x01\x02\x00"):  # nothing, and the head of a ClientHello
            with socket.create_connection((host, int(port)), timeout=30) as silent:
                silent.sendall(begun)
                assert silent.recv(1000) == b""


def test_a_port_for_ipv6_takes_no_clients_of_ipv4() -> None:
    """They would have other addresses here than on the other ports, and so other limits and ACLs."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6")
    with fencepost.Server(http_address="[::]:0", insecure=True) as started:
        port = int(started.http.rpartition(":")[2])
        assert get(f"http://[::1]:{port}/healthz").text == "ok\n"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 30)


@pytest.mark.parametrize(("name", "fits"), [("short", True), ("long" * 300, False)])
def test_a_group_with_a_long_name_counts_as_more_series(name: str, fits: bool) -> None:
    """Every series repeats the name, so the length of the page would be the client's to choose."""
    with fencepost.Server(http_address=ANY, http_max_series=20) as started:
        with fencepost.Admin(started.address) as admin, fencepost.Producer(started.address) as producer:
            admin.create_topic("orders", 2)
            for partition in range(2):
                producer.send("orders", b"x", partition=partition).result(30)
            admin.commit_group_offsets(name, "orders", {0: 1, 1: 1})
        metrics = Metrics(started)
    assert metrics("kafka_consumergroup_current_offset_sum", consumergroup=name, topic="orders") == 2
    assert metrics.sum("kafka_topic_partition_current_offset") == 2  # 12 of the 20 series
    assert metrics.sum("kafka_consumergroup_current_offset") == (2 if fits else 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"http_address": "0.0.0.0:0"}, "anyone who can reach it could see everything"),
        ({"http_address": ANY, "http_listener": "tls"}, "must name a listener with TLS"),
        ({"http_address": "nowhere"}, "HOST:PORT"),
    ],
)
def test_a_port_for_strangers_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(FencepostError, match=re.escape(said)):
        fencepost.Server(**settings)  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_an_error_if_it_was_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FencepostError, match=f"cannot serve HTTP on {address}: the port is in use"):
            fencepost.Server(http_address=address).start()


def test_serve_leaves_signals_to_itself_and_stops_with_an_open_page() -> None:
    command = [sys.executable, "-m", "fencepost", "serve", "--ephemeral", "--listen", ANY, "--http", ANY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        [_, _, http] = [process.stdout.readline() for _ in range(3)]
        host, port = http.split("http://")[1].strip().split(":")
        with socket.create_connection((host, int(port)), timeout=30) as kept:
            kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in kept.recv(1000)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert process.stdout.read() == "fencepost: stopped\n"


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server answers or ends the connection. It resets it if something was sent after its end."""
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_a_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.server.http.port.SILENT_SECONDS", 0.2)
    with fencepost.Server(http_address=ANY) as started:
        host, port = started.http.removeprefix("http://").split(":")
        for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost:"):
            with socket.create_connection((host, int(port)), timeout=30) as silent:
                silent.sendall(begun)
                assert is_closed(silent)
        monkeypatch.undo()  # on a busy machine a whole request takes longer than that, too
        assert get(f"{started.http}/healthz").status == 200


def test_a_request_with_two_lengths_is_rejected_and_its_connection_closed(server: fencepost.Server) -> None:
    """A proxy that goes by the other length would take the rest for a request of its next client."""
    host, port = server.http.removeprefix("http://").split(":")
    request = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(request + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = b"".join(iter(lambda: client.recv(1000), b""))
    assert answers.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answers.count(b"HTTP/1.1") == 1


def test_a_connection_that_goes_on_too_slowly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after its first request, when it has begun another one."""
    monkeypatch.setattr("fencepost.server.http.port.SILENT_SECONDS", 0.3)
    with fencepost.Server(http_address=ANY) as started:
        host, port = started.http.removeprefix("http://").split(":")
        is_answered = False
        while not is_answered:  # on a busy machine the first request may also come too late
            with socket.create_connection((host, int(port)), timeout=30) as slow, contextlib.suppress(ConnectionError):
                slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                is_answered = b"200 OK" in slow.recv(1000)
                slow.sendall(b"G")
                while not is_closed(slow):
                    pass


def test_idle_connections_make_way_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.server.http.port.MOST_HTTP_CONNECTIONS", 5)
    with fencepost.Server(http_address=ANY) as started, ExitStack() as stack:
        host, port = started.http.removeprefix("http://").split(":")
        for _ in range(20):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            assert get(f"{started.http}/healthz").text == "ok\n"


def test_failed_logins_do_not_fill_the_port(tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"admin": "admin-secret"})
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True, http_address=ANY
    ) as started, ThreadPoolExecutor(40) as threads:  # fmt: skip
        url = f"{started.http}/metrics"
        guesses = [threads.submit(get, url, basic("admin", f"guess {number}")) for number in range(40)]
        assert get(f"{started.http}/healthz").text == "ok\n"
        assert {guess.result().status for guess in guesses} <= {401, 429}


def test_scrapes_at_the_same_time_share_their_work(server: fencepost.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    renders = asked = 0

    def slowly(scrapes: Scrapes, *state: Any) -> bytes:
        nonlocal renders
        renders += 1
        begun.set()
        assert go_on.wait(30)
        return render(scrapes, *state)

    async def counted(scrapes: Scrapes) -> bytes:
        nonlocal asked
        asked += 1
        if asked == 5:
            have_asked.set()  # on the server's loop, which does nothing else before this one waits, too
        return await text(scrapes)

    text, render = Scrapes.text, Scrapes._text
    begun, go_on, have_asked = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(Scrapes, "_text", slowly)
    monkeypatch.setattr(Scrapes, "text", counted)
    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(get, f"{server.http}/metrics")
        assert begun.wait(30)
        others = [threads.submit(get, f"{server.http}/metrics") for _ in range(4)]
        assert have_asked.wait(30)
        assert get(f"{server.http}/healthz").status == 200
        go_on.set()
        assert all("kafka_brokers" in each.result().text for each in (first, *others))
    assert renders == 1


def test_an_embedded_server_without_the_port_imports_nothing_of_it() -> None:
    code = (
        "import sys, fencepost\n"
        "with fencepost.Server(): pass\n"
        "print([name for name in ('uvicorn', 'starlette', 'prometheus_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_start_loads_neither_the_api_nor_the_library_of_metrics() -> None:
    """The first request that needs them does: a server starts for clients of Kafka first."""
    code = (
        "import sys, urllib.request, fencepost\n"
        "late = 'fencepost.server.http.v1', 'fencepost.server.http.debug', 'prometheus_client'\n"
        "with fencepost.Server(http_address='127.0.0.1:0') as server:\n"
        "    print([name for name in late if name in sys.modules])\n"
        "    for path in ('/api/v1/cluster', '/metrics'):\n"
        "        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(server.http + path) as page:\n"
        "            page.read()\n"
        "    print([name for name in late if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    before, after = done.stdout.splitlines()
    assert before == "[]"
    assert after == "['fencepost.server.http.v1', 'fencepost.server.http.debug', 'prometheus_client']"


def test_the_docs_list_every_metric(server: fencepost.Server) -> None:
    with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address) as producer:
        admin.create_topic("some", 1)
        producer.send("some", b"x").result()
    page = get(f"{server.http}/metrics").text
    given = {name for name in re.findall("^# TYPE ([a-z_]+) ", page, re.MULTILINE) if not name.startswith("process_")}
    told = set(re.findall("`((?:kafka|fencepost)_[a-z_]+)`", (ROOT / "docs/metrics.md").read_text()))
    assert given == told
