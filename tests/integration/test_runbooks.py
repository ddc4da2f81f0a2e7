"""The runbooks of docs/operating.md, tried: what they tell an operator to type does what they say.

Elsewhere: a full disk (tests/fault/test_full_disk.py), descriptors (tests/hostile/test_http.py), certificates that are
replaced (tests/integration/test_tls.py), and directories of a newer format (tests/unit/server/storage/test_store.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import fencepost
from fencepost.cli import main
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
