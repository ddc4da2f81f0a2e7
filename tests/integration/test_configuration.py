"""Servers with several listeners, `fencepost serve --config`, and `fencepost config check`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fencepost
from fencepost import Admin, Producer, Reader
from fencepost.server.broker import Broker
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.reloading import reload
from fencepost.server.config.settings import ServerConfig
from fencepost.server.net.listener import Listener
from fencepost.server.net.session import Session
from tests.support.configured_server import Serving, run, serve, write_config
from tests.support.logins import login_listener
from tests.support.process import free_port
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

TWO = (
    ListenerConfig(name="inside", address="127.0.0.1:0"),
    ListenerConfig(name="mapped", address="127.0.0.1:0", advertise="broker.example:9093"),
)


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def server(request: pytest.FixtureRequest) -> Iterator[fencepost.Server]:
    with fencepost.Server(listeners=TWO, process=request.param) as started:
        yield started


def test_each_listener_tells_its_clients_its_own_address(server: fencepost.Server) -> None:
    inside, mapped = server.addresses["inside"], server.addresses["mapped"]
    assert inside != mapped
    assert server.address == inside
    with Admin(inside) as admin:
        assert [f"{node.host}:{node.port}" for node in admin.cluster().brokers] == [inside]
    with Admin(mapped) as admin:
        assert [f"{node.host}:{node.port}" for node in admin.cluster().brokers] == ["broker.example:9093"]


def test_describe_configs_names_the_listeners_settings(server: fencepost.Server) -> None:
    with RawClient(server.address) as client:
        asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        answer = client.call(32, 4, resources=[asked], include_synonyms=False, include_documentation=False)
    found = {row.name: row.value for row in answer.results[0].configs}
    assert found["listeners.mapped.advertise"] == "broker.example:9093"
    assert found["listeners.inside.protocol"] == "plaintext"
    assert found["listeners"].count("://") == 2  # Kafka's own name: the addresses, and not the settings


def test_all_listeners_serve_the_same_records() -> None:
    listeners = [ListenerConfig(name=name, address="127.0.0.1:0") for name in ("a", "b")]
    with fencepost.Server(listeners=tuple(listeners)) as server:
        with Producer(server.addresses["a"]) as producer:
            producer.send("shared", b"1").result(30)
        with Reader(server.addresses["b"], "shared", stop="latest") as reader:
            assert [record.value for record in reader] == [b"1"]


def test_a_listener_that_cannot_be_opened_closes_the_others(tmp_path: Path) -> None:
    with fencepost.Server() as taken:
        listeners = (
            ListenerConfig(name="free", address="127.0.0.1:0"),
            ListenerConfig(name="taken", address=taken.address),
        )
        with pytest.raises(fencepost.FencepostError, match="the port is in use"):
            fencepost.Server(tmp_path / "data", listeners=listeners).start()
    with fencepost.Server(tmp_path / "data"):
        pass  # nothing of the failed start is left


def test_serve_reads_the_file_and_prefers_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(
        """
data = "kept"
sync = "os"
default_partitions = 7
max_groups = 8

[listeners.inside]
address = "127.0.0.1:0"
"""
    )
    with subprocess.Popen(
        [sys.executable, "-m", "fencepost", "serve", "--config", file, "--partitions", "3", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FENCEPOST_DEFAULT_PARTITIONS": "5", "FENCEPOST_MAX_GROUPS": "9"},
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        try:
            assert Path(ready["data"]) == tmp_path / "kept"
            assert ready["listeners"] == {"inside": ready["address"]}
            listed = run("topic", "create", "orders", "--servers", ready["address"])
            assert listed.returncode == 0, listed.stderr
            described = json.loads(run("topic", "describe", "orders", "--json", "--servers", ready["address"]).stdout)
            assert len(described["partitions"]) == 3
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "server.toml"
    write_config(found, "")
    return found


@pytest.fixture
def serving(file: Path) -> Iterator[Serving]:
    with serve(file) as started:
        yield started


def test_a_reload_applies_what_it_can_and_names_the_rest(serving: Serving, file: Path) -> None:
    write_config(file, "default_partitions = 4\nopen_files = 50\nlog_level = 'info'")
    assert serving.reload() == {
        "applied": ["log_level", "default_partitions"],
        "needs_restart": ["open_files"],
        "mistakes": [],
    }
    with Admin(serving.address) as admin:
        admin.create_topic("four")
        assert len(admin.describe_topic("four").partitions) == 4
    assert serving.reload() == {"applied": [], "needs_restart": ["open_files"], "mistakes": []}


def test_a_reload_with_a_mistake_changes_nothing(serving: Serving, file: Path) -> None:
    write_config(file, "default_partitions = 4\nmax_groups = 'many'")
    assert serving.reload(expect=1)["mistakes"] == [f"{file}:4: max_groups must be a whole number, not 'many'"]
    taken = f"[listeners.inside]\naddress = '127.0.0.1:0'\n[listeners.taken]\naddress = '{serving.address}'"
    write_config(file, "default_partitions = 4", taken)
    assert serving.reload(expect=1)["mistakes"] == [f"cannot listen on {serving.address}: the port is in use"]
    with Admin(serving.address) as admin:
        admin.create_topic("one")
        assert len(admin.describe_topic("one").partitions) == 1


def test_listeners_come_and_go_while_connections_stay(serving: Serving, file: Path) -> None:
    port = free_port()
    with Producer(serving.address) as producer:
        producer.send("orders", b"1").result(30)
        write_config(file, "", f"[listeners.other]\naddress = '127.0.0.1:{port}'")
        assert serving.reload()["applied"] == ["listeners.other", "listeners.inside"]
        producer.send("orders", b"2").result(30)  # over the connection of the closed listener
        with Reader(f"127.0.0.1:{port}", "orders", stop="latest") as reader:
            assert [record.value for record in reader] == [b"1", b"2"]
        host, _, closed = serving.address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(closed)), 5)


async def test_a_reload_may_let_the_first_listener_take_tokens(tmp_path: Path) -> None:
    """The server that started without such a listener has not read the keys."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "A" * 43}]}))
    old = ServerConfig(
        data=tmp_path / "data", listen="127.0.0.1:0", oauth_issuer="i", oauth_audience="a", oauth_jwks=str(keys)
    )
    broker = Broker(old)
    listener = Listener(broker)
    await broker.start()
    await listener.start()
    outcome = await reload(broker, listener, lambda: replace(old, listeners=login_listener("OAUTHBEARER")))
    session = Session(broker.config.listeners[0])
    broker.logins.begin(session, "OAUTHBEARER")
    assert session.login is not None
    await listener.stop()
    await broker.close()
    assert outcome.mistakes == []


def test_a_hangup_reloads(serving: Serving, file: Path) -> None:
    write_config(file, "max_groups = 7")
    serving.process.send_signal(signal.SIGHUP)
    ends = time.monotonic() + 30
    while "configuration reloaded: max_groups" not in serving.log.read_text():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_server_that_cannot_reload_is_left_alone(tmp_path: Path) -> None:
    nobody = run("config", "reload", "--data", tmp_path)
    assert (nobody.returncode, nobody.stderr.partition(":")[0]) == (1, "fencepost")
    assert "no server uses" in nobody.stderr
    with fencepost.Server(tmp_path / "data", process=True) as server:
        without_file = run("config", "reload", "--data", tmp_path / "data")
        assert without_file.returncode == 1
        assert "was started without --config" in without_file.stderr
        with Admin(server.address) as admin:
            assert admin.topics() == ()


def test_config_check_prints_every_mistake_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text("sync = 'os'\nmax_conections = 5\nopen_files = 0\n")
    wrong = run("config", "check", file)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.splitlines() == [
        f"{file}:2: unknown setting 'max_conections'; did you mean 'max_connections'?",
        f"{file}:3: open_files must be from 1 to 2147483647, not 0",
    ]
    as_json = json.loads(run("config", "check", file, "--json").stdout)
    assert [mistake["where"] for mistake in as_json["mistakes"]] == [f"{file}:2", f"{file}:3"]
    refused = run("serve", "--config", file)
    assert refused.returncode == 2
    assert "max_conections" in refused.stderr
    file.write_text("sync = 'os'\n")
    right = run("config", "check", file)
    assert (right.returncode, right.stdout) == (0, f"{file} is right\n")
