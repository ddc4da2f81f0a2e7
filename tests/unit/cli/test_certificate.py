"""`fencepost certificate create`: what it writes, and what it refuses to overwrite."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fencepost.cli import main
from fencepost.core.security.certificate_name import subject_of

pytestmark = pytest.mark.unit


def create(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["certificate", "create", str(folder), *arguments], catch_exceptions=False)


def test_the_authority_signs_for_the_server_and_clients(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    assert create(folder, "--host", "broker.example", "--host", "192.0.2.7", "--client", "alice").exit_code == 0
    assert {path.name for path in folder.iterdir()} == {
        *("ca.pem", "ca.key", "server.pem", "server.key", "alice.pem", "alice.key"),
    }
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*.key"))
    assert subject_of(ssl.PEM_cert_to_DER_cert((folder / "alice.pem").read_text())) == "CN=alice"
    details = ssl._ssl._test_decode_cert(str(folder / "server.pem"))  # type: ignore[attr-defined]
    assert details["subjectAltName"] == (("DNS", "broker.example"), ("IP Address", "192.0.2.7"))
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "alice.pem", folder / "alice.key")


def test_further_clients_are_signed_by_the_same_authority(tmp_path: Path) -> None:
    create(tmp_path, "--client", "alice")
    authority, server = (tmp_path / "ca.pem").read_text(), (tmp_path / "server.pem").read_text()
    assert create(tmp_path, "--client", "bob").stdout == f"created {tmp_path}/bob.pem and bob.key\n"
    assert ((tmp_path / "ca.pem").read_text(), (tmp_path / "server.pem").read_text()) == (authority, server)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    create(tmp_path, "--client", "alice")
    kept = (tmp_path / "alice.key").read_text()
    refused = create(tmp_path, "--client", "alice")
    assert (refused.exit_code, (tmp_path / "alice.key").read_text()) == (1, kept)
    assert "exists: remove it first" in refused.stderr


@pytest.mark.parametrize("name", ["ca", "server", "../alice", "a/b", "a,b"])
def test_a_clients_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    assert create(tmp_path / "made", "--client", name).exit_code == 2
    assert not (tmp_path / "made").exists()


def test_without_openssl_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    refused = create(tmp_path)
    assert refused.exit_code == 1
    assert "`openssl` is not on the PATH" in refused.stderr
