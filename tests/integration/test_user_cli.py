"""`fencepost user`, in a data directory, on our server and on Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fencepost
from fencepost import Admin
from fencepost.errors import ErrorCode, ServerError
from tests.integration.conftest import TestedServer
from tests.support.logins import log_in, login_listener

pytestmark = pytest.mark.integration


def user(*arguments: str | Path, stdin: str = "", expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", "user", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


def test_the_first_user_is_added_before_the_first_start(tmp_path: Path) -> None:
    data, secret = tmp_path / "data", "correct horse"
    assert secret not in user("add", "admin", "--password-file", "-", "--data", data, stdin=f"{secret}\n")
    assert json.loads(user("list", "--data", data, "--json")) == {
        "admin": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    }
    assert secret.encode() not in (data / "meta.sqlite").read_bytes()
    with fencepost.Server(data, listeners=login_listener("PLAIN", "SCRAM-SHA-512")) as server:
        log_in(server.address, "admin", secret).close()
        assert "in use" in user("add", "bob", "--password-file", "-", "--data", data, stdin="x\n", expect=1)
        config = tmp_path / "admin.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            f"sasl.username=admin\nsasl.password={secret}\n"
        )
        at = ("--servers", server.address, "--config", config)
        user("add", "bob", "--password-file", "-", *at, stdin="bob-secret")
        log_in(server.address, "bob", "bob-secret").close()
        user("remove", "bob", *at)
        assert list(json.loads(user("list", "--json", *at))) == ["admin"]
    user("remove", "admin", "--data", data)
    assert "no users" in user("list", "--data", data)


def test_a_password_is_never_taken_from_the_command_line(tmp_path: Path) -> None:
    assert "--password-file" in user("add", "admin", "--data", tmp_path / "data", expect=2)
    assert "No such option" in user("add", "admin", "--password", "x", expect=2)
    assert not (tmp_path / "data").exists()


def test_mistakes_are_named(tmp_path: Path) -> None:
    assert "must not be empty" in user("add", "a", "--password-file", "-", "--data", tmp_path, stdin="\n", expect=2)
    missing = tmp_path / "no-such-file"
    assert "cannot read the password" in user("add", "a", "--password-file", missing, "--data", tmp_path, expect=2)
    assert "no data directory" in user("list", "--data", tmp_path / "none", expect=1)
    user("add", "a", "--password-file", "-", "--data", tmp_path / "data", stdin="x\n")
    assert "there is no user 'b'" in user("remove", "a", "b", "--data", tmp_path / "data", expect=1)
    assert list(json.loads(user("list", "--json", "--data", tmp_path / "data"))) == ["a"]


def test_admin_manages_users(server: TestedServer, name: str) -> None:
    with Admin(server.address) as admin:
        admin.set_user_password(name, "one", iterations=8192)
        while len((users := admin.users()).get(name, {})) < 2:  # a broker of Apache Kafka sees each a little later
            pass
        assert users[name] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
        admin.remove_users([name])
        while name in admin.users():
            pass
        with pytest.raises(ServerError) as caught:
            admin.remove_users([name])
        assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND
