"""`fencepost serve` as a service: systemd's messages, the unit, the container's files and its health check."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest
import yaml

import fencepost
from fencepost.cli import main
from fencepost.server.config.loading import Sources
from fencepost.server.config.settings import ServerConfig
from tests.support.pages import ROOT

pytestmark = pytest.mark.integration

ANY: Final = "127.0.0.1:0"
PACKAGING: Final = ROOT / "packaging"
UNIT: Final = PACKAGING / "fencepost.service"
PROGRAM: Final = "/opt/fencepost/bin/fencepost"
COMPOSE: Final = PACKAGING / "compose"
CONTAINERFILE: Final = (PACKAGING / "Containerfile").read_text(encoding="utf-8")


class Service(NamedTuple):
    process: subprocess.Popen[str]
    manager: socket.socket
    file: Path

    def hears(self, wanted: str) -> dict[str, str]:
        """Return the next message that begins with `wanted`; other messages may only be signs of life."""
        while True:
            message = dict(line.split("=", 1) for line in self.manager.recv(4096).decode().split("\n"))
            if next(iter(message)) == wanted:
                return message
            assert message == {"WATCHDOG": "1"}, f"waiting for {wanted}"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    file = tmp_path / "server.toml"
    file.write_text("data = 'kept'\n[listeners.inside]\naddress = '127.0.0.1:0'\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        watched = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with subprocess.Popen(
            [sys.executable, "-m", "fencepost", "serve", "--config", file, "--no-http", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **watched},
        ) as process:
            yield Service(process, manager, file)
            process.kill()


def test_serve_tells_systemd_of_its_life_from_start_to_stop(service: Service) -> None:
    ready = service.hears("READY")
    assert service.process.stdout is not None
    address = json.loads(service.process.stdout.readline())["address"]
    assert ready == {"READY": "1", "STATUS": f"listening on {address}"}
    with fencepost.Admin(address) as admin:
        admin.ping()  # ready means that clients can connect
    for _ in range(3):
        service.hears("WATCHDOG")
    service.process.send_signal(signal.SIGTERM)
    assert service.hears("STOPPING") == {"STOPPING": "1"}
    assert service.process.wait(60) == 0


def test_systemd_hears_when_a_reload_begins_and_how_it_ended(service: Service) -> None:
    service.hears("READY")
    for text, status in (
        ("default_partitions = 4", "configuration reloaded: default_partitions"),
        ("default_partitions = -1", "the new configuration is wrong, the old one stays: "),
    ):
        service.file.write_text(f"data = 'kept'\n{text}\n[listeners.inside]\naddress = '127.0.0.1:0'\n")
        service.process.send_signal(signal.SIGHUP)
        assert int(service.hears("RELOADING")["MONOTONIC_USEC"]) > 0
        assert service.hears("READY")["STATUS"].startswith(status)


# --- the unit ---


def unit() -> list[tuple[str, str, str]]:
    """Return (section, key, value) of every line; a key may be there more than once."""
    lines = configparser.RawConfigParser(strict=False, interpolation=None)
    lines.optionxform = str  # type: ignore[assignment,method-assign]
    lines.read(UNIT, encoding="utf-8")
    return [(section, key, value) for section in lines.sections() for key, value in lines[section].items()]


def check_command(words: list[str]) -> None:
    """Check that the command exists, and takes every option and argument."""
    command: click.Command = main
    rest = list(words)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), rest[0])
        assert found is not None, f"no command {rest[0]} in {words}"
        command = found
        del rest[0]
    command.make_context(" ".join(words), rest, resilient_parsing=False)


def test_the_commands_of_the_unit_exist_and_take_their_options() -> None:
    commands = {key: shlex.split(value) for _, key, value in unit() if key.startswith("Exec")}
    assert set(commands) == {"ExecStartPre", "ExecStart", "ExecReload"}
    for program, *words in commands.values():
        assert program == PROGRAM
        check_command(words)
    assert commands["ExecStart"][1] == "serve"


def test_the_unit_agrees_with_itself_and_with_the_server() -> None:
    lines = {key: value for _, key, value in unit()}
    assert {section for section, _, _ in unit()} == {"Unit", "Service", "Install"}
    assert lines["Type"] == "notify"
    assert f"--data /var/lib/{lines['StateDirectory']}" in lines["ExecStart"]
    assert f"--data /var/lib/{lines['StateDirectory']}" in lines["ExecReload"]
    assert f"--config /etc/{lines['ConfigurationDirectory']}/" in lines["ExecStart"]
    assert lines["User"] not in ("", "root")
    defaults = ServerConfig()
    assert int(lines["LimitNOFILE"]) > defaults.max_connections + defaults.open_files
    assert int(lines["TimeoutStopSec"]) * 1000 > defaults.drain_ms
    for key in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "MemoryDenyWriteExecute"):
        assert lines[key] == "yes"
    assert lines["ProtectSystem"] == "strict"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here; the two tests above have checked the unit's keys and commands")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, sys.executable), encoding="utf-8")
    done = subprocess.run([analyze, "verify", copy], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert not complaints
    assert done.returncode == 0, done.stderr


# --- the container ---


def directives(name: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", CONTAINERFILE)
    return [line.removeprefix(name).strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


def test_the_commands_of_the_container_exist_and_take_their_options() -> None:
    (start,) = directives("CMD")
    (health,) = directives("HEALTHCHECK")
    assert directives("ENTRYPOINT") == ['["fencepost"]']
    check_command(json.loads(start))
    program, *words = json.loads(health.partition("CMD")[2])
    assert program == "fencepost"
    check_command(words)
    (example,) = re.findall(r"^#\s+(serve .*)$", CONTAINERFILE, re.MULTILINE)
    check_command(shlex.split(example))


def test_the_container_is_not_root_and_its_files_exist() -> None:
    (user,) = directives("USER")
    assert all(int(number) > 0 for number in user.split(":"))
    for line in directives("COPY"):
        if not line.startswith("--from="):
            assert all((ROOT / name).exists() for name in line.split()[:-1])
    (volume,) = directives("VOLUME")
    assert volume in json.loads(directives("CMD")[0])


def test_an_image_does_not_open_itself_to_strangers() -> None:
    (start,) = directives("CMD")
    with pytest.raises(fencepost.FencepostError, match="--insecure"):
        Sources(None, {}, {"listen": json.loads(start)[-1]}).load()


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def test_the_compose_file_configures_a_server_that_starts() -> None:
    service = compose()["services"]["fencepost"]
    check_command(service["command"])
    words = service["command"]
    flags = {"http_address": words[words.index("--http") + 1], "insecure": "--insecure" in words}
    config = Sources(None, service["environment"], flags).load()
    assert {each.name: each.advertise for each in config.endpoints} == {
        "outside": "127.0.0.1:9092",
        "inside": "fencepost:9093",
    }
    assert service["read_only"] is True
    assert (COMPOSE / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).exists()


def test_every_port_and_file_of_the_compose_file_is_right() -> None:
    whole = compose()
    for name, service in whole["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), f"{name} is open to other machines"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in whole["volumes"] or (COMPOSE / source).exists(), mount
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    words = whole["services"]["fencepost"]["command"]
    assert target.split(":") == ["fencepost", words[words.index("--http") + 1].split(":")[1]]
    source = yaml.safe_load((COMPOSE / "grafana-datasource.yml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


def test_compose_loads_the_alerts_and_the_dashboard() -> None:
    """Each file that a configuration names is mounted, and is the one that `fencepost generate` prints."""
    services = compose()["services"]

    def mounted(service: str, path: str) -> str:
        [found] = [each for each in services[service]["volumes"] if each.split(":")[1] == path]
        return (COMPOSE / str(found).split(":")[0]).resolve().read_text(encoding="utf-8")

    [rules] = yaml.safe_load(mounted("prometheus", "/etc/prometheus/prometheus.yml"))["rule_files"]
    assert yaml.safe_load(mounted("prometheus", f"/etc/prometheus/{rules}"))["groups"]
    provider = mounted("grafana", "/etc/grafana/provisioning/dashboards/fencepost.yml")
    [folder] = [each["options"]["path"] for each in yaml.safe_load(provider)["providers"]]
    assert json.loads(mounted("grafana", f"{folder}/fencepost.json"))["uid"] == "fencepost"


# --- ping --http ---


def ping(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fencepost", "ping", *arguments], capture_output=True, text=True, check=False
    )


def test_ping_asks_the_http_port() -> None:
    with fencepost.Server(http_address=ANY) as server:
        address = server.http.removeprefix("http://")
        alive = ping("--http", address, "--json")
        ready = ping("--http", server.http, "--ready", "--json")
        missing = ping("--http", f"{address}/healthz")
    assert (alive.returncode, json.loads(alive.stdout)[0]["answer"]) == (0, "ok")
    assert (ready.returncode, json.loads(ready.stdout)[0]["answer"]) == (0, "ready")
    assert missing.returncode == 2
    assert missing.stderr.startswith("fencepost: --http takes HOST:PORT")
    gone = ping("--http", address)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"fencepost: cannot read http://{address}/healthz: ")
    assert gone.stderr.count("\n") == 1


def test_ping_fails_while_the_server_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.server.http.app._PROBE", "INSERT INTO no_such_table VALUES (?)")
    with fencepost.Server(http_address=ANY) as server:
        found = ping("--http", server.http, "--ready")
        assert ping("--http", server.http).returncode == 0
    assert found.returncode == 1
    assert "/readyz answers 503: " in found.stderr
