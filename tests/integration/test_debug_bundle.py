"""`fencepost debug bundle`: what is in the file, that no secret is, and what a server that hangs still gives."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

import pytest

import fencepost
from fencepost.cli.debug import Part, write
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.process.stacks import ask_for_stacks
from tests.support.certificates import make
from tests.support.http_client import basic, get
from tests.support.logins import add_users, create_acls, grant, log_in
from tests.support.pages import ROOT

pytestmark = pytest.mark.integration

ANY: Final = "127.0.0.1:0"
HANGING: Final = ROOT / "tests" / "workers" / "hanging_server.py"


def bundle(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Collect a bundle. Only a server that hangs is to be given up early; a busy machine may take its time."""
    command = [sys.executable, "-m", "fencepost", "debug", "bundle", str(file), "--timeout", "60", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def contents(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        members = [(Path(each.name).name, archive.extractfile(each)) for each in archive.getmembers()]
        return {name: member.read().decode() for name, member in members if member is not None}


def test_a_bundle_has_what_the_server_knows(tmp_path: Path) -> None:
    file = tmp_path / "fault.tar.gz"
    with (
        fencepost.Server(tmp_path / "data", process=True, http_address=ANY, log_level="info") as server,
        fencepost.Producer(server.address) as producer,
    ):
        producer.send("orders", b"a record's value").result()
        done = bundle(
            file, "--http", server.http, "--servers", server.address, "--data", str(tmp_path / "data"), "--json"
        )
    assert done.returncode == 0, done.stderr
    assert [each["error"] for each in json.loads(done.stdout)["parts"] if each["error"]] == []
    found = contents(file)
    server_says = json.loads(found["server.json"])
    assert server_says["versions"]["fencepost"] == fencepost.__version__
    assert "kio" in server_says["versions"]["packages"]
    assert server_says["configuration"]["sync"] == "os"
    assert 'kafka_topic_partitions{topic="orders"} 1\n' in found["metrics.txt"]
    assert "INFO uvicorn.error: Started server process" in found["log.txt"]
    assert "close idle connections" in found["tasks.txt"]
    assert "Current thread" in found["threads.txt"]
    assert json.loads(found["data.json"])["topics_on_disk"] == 1
    assert "a record's value" not in str(found)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_secret_is_in_a_bundle(tmp_path: Path) -> None:
    """Passwords of users, the client's login, a token, JAAS, a private key: in settings, in the log, on the wire."""
    certificates = make(tmp_path)
    users = {"admin": "admin-Wq71-secret", "app": "app-Zr52-secret"}
    add_users(tmp_path / "data", users)
    listener = ListenerConfig(
        name="inside", address=ANY, protocol="sasl_ssl", certificate=certificates.server, mechanisms=("PLAIN",)
    )
    key = next(path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes())
    key_lines = [line for line in key.read_text().splitlines() if len(line) > 40 and not line.startswith("-")]
    planted = ["jaas-Lp93-secret", "token-Vx48-secret", "url-Gk27-secret"]
    file = tmp_path / "fault.tar.gz"
    with fencepost.Server(
        tmp_path / "data", process=True, listeners=(listener,), http_address=ANY, http_listener="inside",
        authorization_enabled=True, authorization_super_users=("User:admin",), log_level="debug",
    ) as server:  # fmt: skip
        login = {
            "security.protocol": "SASL_SSL", "ssl.ca.location": certificates.authority, "sasl.mechanism": "PLAIN",
            "sasl.username": "admin", "sasl.password": users["admin"],
        }  # fmt: skip
        for client_id in (f"sasl.jaas.config={planted[0]}", f"Bearer {planted[1]}", f"https://a:{planted[2]}@host/"):
            config = {**login, "bootstrap.servers": server.address, "client.id": client_id}
            with fencepost.Producer.from_config(config) as producer:
                producer.send("orders", b"1").result()
        wrong = {**login, "sasl.username": "app", "sasl.password": "wrong-Hd64-secret"}
        with (
            fencepost.Producer.from_config({**wrong, "bootstrap.servers": server.address}) as producer,
            pytest.raises(fencepost.FencepostError),
        ):
            producer.send("orders", b"").result()
        options = [word for name, value in login.items() for word in ("-X", f"{name}={value}")]
        done = bundle(
            file, "--http", server.http, "--servers", server.address,
            "--data", str(tmp_path / "data"), *options,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    everything = gzip.decompress(file.read_bytes()) + done.stdout.encode() + done.stderr.encode()
    assert b"orders" in everything
    assert b'"protocol": "sasl_ssl"' in everything
    secrets = [*users.values(), *planted, *key_lines, "wrong-Hd64-secret"]
    assert len(key_lines) > 1
    for secret in secrets:
        for form in (secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")[:-1]):
            assert form not in everything
    assert base64.b64encode(f"admin:{users['admin']}".encode()) not in everything


def test_with_authorization_only_super_users_see_the_state(tmp_path: Path) -> None:
    users = {"admin": "admin-secret", "prometheus": "scrape-secret"}
    add_users(tmp_path / "data", users)
    listener = ListenerConfig(name="inside", address=ANY, protocol="sasl_plaintext", mechanisms=("PLAIN",))
    with fencepost.Server(
        tmp_path / "data", listeners=(listener,), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY,
    ) as server:  # fmt: skip
        with log_in(server.address, "admin", users["admin"]) as client:
            create_acls(client, [grant("prometheus", ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)])
        assert get(f"{server.http}/metrics", basic("prometheus", users["prometheus"])).status == 200
        url = f"{server.http}/debug/state"
        assert get(url).status == 401
        refused = get(url, basic("prometheus", users["prometheus"]))
        assert (refused.status, refused.text) == (403, "only a super user may see this page\n")
        assert get(url, basic("admin", users["admin"])).status == 200
        without = bundle(tmp_path / "without.tgz", "--http", server.http, "--timeout", "30")
    assert without.returncode == 1
    assert "/debug/state answers 401" in without.stderr


def test_a_server_that_hangs_still_gives_a_bundle(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "hangs.tar.gz"
    with subprocess.Popen(
        [sys.executable, HANGING, data], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            where = json.loads(process.stdout.readline())
            process.stdin.write("hang\n")
            process.stdin.flush()
            assert process.stdout.readline() == "hangs\n"
            arguments = ("--http", where["http"], "--servers", where["address"], "--data", str(data))
            done = bundle(file, *arguments, "--timeout", "6")
            assert process.poll() is None, "the signal must not end the server"
        finally:
            process.kill()
    assert done.returncode == 1
    assert done.stderr == (
        f"fencepost: {where['http']} does not answer within 6 s; {file} has what is known without the server's help, "
        "with the stack of every thread\n"
    )
    found = contents(file)
    assert "hang_for_ever" in found["stacks.txt"]
    assert "meta.sqlite" in json.loads(found["data.json"])["files"]
    assert json.loads(found["client.json"])["versions"]["fencepost"] == fencepost.__version__
    assert "does not answer" in json.loads(found["contents.json"])["server.json"]
    assert "metrics.txt" not in found


def test_a_bundle_that_cannot_be_written_whole_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room: the next try must not stumble over the remains of this one."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", fail)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "fault.tar.gz", [Part("log.txt", "text")])
    assert list(tmp_path.iterdir()) == []


def test_a_signal_gives_the_stacks_of_a_healthy_server_too(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path, process=True) as server:
        for _ in range(2):
            stacks = ask_for_stacks(tmp_path, server.pid, 60)
            assert stacks is not None
            assert stacks.count("Current thread") == 1
        assert ask_for_stacks(tmp_path, os.getpid(), 60) is None, "no signal to a process that has not asked for it"
        with fencepost.Admin(server.address) as admin:
            admin.ping()
    assert (tmp_path / "stacks.txt").read_text() == ""


def test_a_late_signal_does_not_end_a_server_that_stops(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, HANGING, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("fault.zip", 2, "FILE must end in .tar.gz or .tgz, not 'fault.zip'"),
        ("here.tar.gz", 1, "exists already: choose another name"),
        ("missing/fault.tar.gz", 1, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, name: str, code: int, said: str) -> None:
    (tmp_path / "here.tar.gz").touch()
    with fencepost.Server(http_address=ANY) as server:
        done = bundle(tmp_path / name, "--http", server.http, "--servers", server.address)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
