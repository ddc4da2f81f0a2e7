"""Certificates for tests, made with `openssl`: an authority, a server for 127.0.0.1, a client with a locked key."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

KEY_PASSWORD: Final = "of the client's key"


@dataclass(frozen=True)
class Certificates:
    authority: Path
    server: Path
    """Certificate and key in one file."""
    client: Path
    client_key: Path
    """Locked with KEY_PASSWORD."""
    stranger: Path
    """An authority that has signed nothing."""


def make(folder: Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("needs `openssl` on the PATH to make certificates")
    _request(folder, "authority", "-nodes")
    _request(folder, "stranger", "-nodes")
    signed = ("-CA", folder / "authority.pem", "-CAkey", folder / "authority.key")
    extensions = ("-addext", "basicConstraints=CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1")
    _request(folder, "server", "-nodes", *signed, *extensions)
    _request(folder, "client", "-passout", f"pass:{KEY_PASSWORD}", *signed, "-addext", "basicConstraints=CA:FALSE")
    both = folder / "server-with-key.pem"
    both.write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    names = ("authority.pem", both.name, "client.pem", "client.key", "stranger.pem")
    return Certificates(*(folder / name for name in names))


def _request(folder: Path, name: str, *more: str | Path) -> None:
    command: list[str | Path] = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-days",
        "30",
    ]
    files: list[str | Path] = [
        "-subj",
        f"/CN={name}",
        "-keyout",
        folder / f"{name}.key",
        "-out",
        folder / f"{name}.pem",
    ]
    done = subprocess.run([*command, *files, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
