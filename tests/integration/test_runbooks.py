"""The runbooks of docs/operating.md, tried: what they tell an operator to type does what they say.

Elsewhere: a full disk (tests/fault/test_full_disk.py), descriptors (tests/hostile/test_http.py), and certificates that
are replaced under load (tests/integration/test_tls.py).
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import fencepost
from fencepost.cli import main
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.storage.store import FORMAT_VERSION
from tests.support.backups import command, create, read, write
from tests.support.logins import add_users, log_in, login_listener
from tests.support.pages import ROOT
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

RUNBOOKS = (
    (ROOT / "docs" / "operating.md").read_text(encoding="utf-8").partition("## Runbooks")[2].partition("\n## ")[0]
)


def test_every_command_in_the_runbooks_exists() -> None:
    found = set(re.findall(r"`?fencepost ((?:topic|group|config|user|transactions|quota) [a-z]+|[a-z]+)", RUNBOOKS))
    assert len(found) > 10
    for name in sorted(found - {"server"}):
        assert CliRunner().invoke(main, [*name.split(), "--help"]).exit_code == 0, name


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one"])
        second = command("serve", "--data", data, "--listen", "127.0.0.1:0")
        assert second.returncode == 1
        assert re.search(r"is in use by another fencepost server \(process \d+\)", second.stderr)
    assert command("check", "--data", data).returncode == 0
    [log] = (data / "logs").rglob("*.log")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    damaged = command("check", "--data", data)
    assert damaged.returncode == 1
    assert log.name in damaged.stdout + damaged.stderr
    (tmp_path / "wrong.toml").write_text("max_conections = 5\n")
    checked = command("config", "check", tmp_path / "wrong.toml")
    assert checked.returncode == 1
    assert "max_connections" in checked.stderr


def test_the_lag_of_a_group_and_what_holds_it_back_are_shown(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one", b"two"])
        command("consume", "orders", "--group", "billing", "--count", "1", "--servers", server.address)
        described = command("group", "describe", "billing", "--servers", server.address)
        assert re.search(r"^orders +0 +1 +2 +1 ", described.stdout, re.MULTILINE)
        with TransactionClient(server.address) as client:
            _, pid, epoch = client.init("stuck")
            client.add(TransactionalProducer("stuck", pid, epoch), {"orders": [0]})
            listed = command("transactions", "list", "--open", "--servers", server.address)
            assert "stuck" in listed.stdout
            assert command("transactions", "abort", "stuck", "--servers", server.address).returncode == 0
        assert "stuck" not in command("transactions", "list", "--open", "--servers", server.address).stdout


def test_a_certificate_that_expires_is_replaced(tmp_path: Path) -> None:
    """The lines with openssl, word for word, before and after."""
    of_file, of_server = re.findall(r"`(openssl [^`]+)`", RUNBOOKS)
    for folder, days in (("used", "10"), ("new", "300")):
        assert command("certificate", "create", tmp_path / folder, "--days", days).returncode == 0
    used, new = tmp_path / "used", tmp_path / "new"
    files = {"certificate": used / "server.pem", "key": used / "server.key"}
    listener = ListenerConfig(name="tls", address="127.0.0.1:0", protocol="ssl", **files)  # type: ignore[arg-type]

    def typed(line: str, folder: Path) -> str:
        done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=True)
        assert re.fullmatch(r"notAfter=.+ GMT\n", done.stdout)
        return done.stdout

    with fencepost.Server(tmp_path / "data", listeners=(listener,)) as server:
        line = of_server.replace("HOST:PORT", server.address)
        assert typed(of_file, used) == typed(line, used) != typed(of_file, new)
        for name in ("server.key", "server.pem"):
            shutil.copy(new / name, used / name)
        deadline = time.monotonic() + 60
        while typed(line, used) != typed(of_file, new):
            assert time.monotonic() < deadline
    assert typed(of_file, used) == typed(of_file, new)


def test_an_upgrade_and_the_way_back(tmp_path: Path) -> None:
    """What a newer version does to the directory is played: it raises the number of its format."""
    data, backups, again = tmp_path / "data", tmp_path / "backups", tmp_path / "again"
    (tmp_path / "server.toml").write_text(f'data = "{data}"\n')
    with fencepost.Server(data) as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one"])
        assert command("backup", backups, "--data", data).returncode == 0
    assert command("config", "check", tmp_path / "server.toml").returncode == 0
    with fencepost.Server(data) as server:
        assert command("ping", "--servers", server.address).returncode == 0
        assert command("doctor", "--servers", server.address).returncode == 0
        write(server.address, "orders", [b"since the upgrade"])
    with sqlite3.connect(data / "meta.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    connection.close()

    def files() -> dict[Path, bytes]:
        found = (path for path in data.rglob("*") if path.is_file() and path.name != "fencepost.lock")
        return {path: path.read_bytes() for path in found}

    before = files()
    refused = command("serve", "--data", data, "--listen", "127.0.0.1:0")
    assert refused.returncode == 1
    assert "was written by a newer fencepost" in refused.stderr
    assert files() == before
    assert command("restore", backups, "--data", again).returncode == 0
    with fencepost.Server(again) as server:
        assert read(server.address, "orders") == [b"one"]


def test_a_restore_drill(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path / "data") as server:
        create(server.address, "orders")
        write(server.address, "orders", [b"one"])
        assert command("backup", tmp_path / "backups", "--data", tmp_path / "data").returncode == 0
        assert command("restore", tmp_path / "backups", "--data", tmp_path / "drill").returncode == 0
        assert command("check", "--data", tmp_path / "drill").returncode == 0
        with fencepost.Server(tmp_path / "drill") as drill:
            assert read(drill.address, "orders") == [b"one"]


def test_a_lost_password_of_the_administrator_is_set_anew(tmp_path: Path) -> None:
    data, new = tmp_path / "data", tmp_path / "new"
    add_users(data, {"admin": "forgotten", "alice": "alice-secret"})
    new.write_text("remembered\n")
    assert command("user", "add", "admin", "--data", data, "--password-file", new).returncode == 0
    with fencepost.Server(data, listeners=login_listener("PLAIN"), authorization_enabled=True) as server:
        log_in(server.address, "admin", "remembered").close()
        log_in(server.address, "alice", "alice-secret").close()
