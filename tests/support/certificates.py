"""Certificates for tests, made with `openssl`: an authority, a server for 127.0.0.1, a client with a locked key."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from fencepost.server.config.listener import ListenerConfig

KEY_PASSWORD: Final = "of the client's key"
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


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
    folder: Path

    def mutual_listener(self, name: str = "mutual", address: str = "127.0.0.1:0") -> ListenerConfig:
        """Return a listener that requires a client's certificate."""
        return ListenerConfig(
            name=name,
            address=address,
            protocol="ssl",
            certificate=self.server,
            client_ca=self.authority,
            client_certificate="required",
        )

    def issue(self, name: str, *, subject: str | None = None, days: int = 30, authority: str = "authority") -> Pair:
        """Return a certificate that the authority has signed, with its open key; negative `days`: expired."""
        key, pem = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        request, extensions = self.folder / f"{name}.request", self.folder / f"{name}.extensions"
        extensions.write_text("basicConstraints=CA:FALSE\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl("req", "-new", *_NEW_KEY, "-nodes", "-utf8", "-subj", subject or f"/CN={name}", "-keyout", key,
                 "-out", request)  # fmt: skip
        _openssl("x509", "-req", "-in", request, "-CA", self.folder / f"{authority}.pem",
                 "-CAkey", self.folder / f"{authority}.key", "-set_serial", str(time.time_ns()), "-days", str(days),
                 "-extfile", extensions, "-out", pem)  # fmt: skip
        return Pair(pem, key)


class Pair(NamedTuple):
    certificate: Path
    key: Path


def make(folder: Path) -> Certificates:
    if shutil.which("openssl") is None:
        reason = "needs `openssl` on the PATH to make certificates"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    _request(folder, "authority", "-nodes")
    _request(folder, "stranger", "-nodes")
    signed = ("-CA", folder / "authority.pem", "-CAkey", folder / "authority.key")
    extensions = ("-addext", "basicConstraints=CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1")
    _request(folder, "server", "-nodes", *signed, *extensions)
    _request(folder, "client", "-passout", f"pass:{KEY_PASSWORD}", *signed, "-addext", "basicConstraints=CA:FALSE")
    both = folder / "server-with-key.pem"
    both.write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return Certificates(
        authority=folder / "authority.pem",
        server=both,
        client=folder / "client.pem",
        client_key=folder / "client.key",
        stranger=folder / "stranger.pem",
        folder=folder,
    )


def _request(folder: Path, name: str, *more: str | Path) -> None:
    command: list[str | Path] = ["req", "-x509", *_NEW_KEY, "-days", "30"]
    files: list[str | Path] = [
        "-subj",
        f"/CN={name}",
        "-keyout",
        folder / f"{name}.key",
        "-out",
        folder / f"{name}.pem",
    ]
    _openssl(*command, *files, *more)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
