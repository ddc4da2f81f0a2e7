"""`fencepost certificate create`: an authority, and certificates for a server and its clients, for trying out TLS."""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click

from fencepost.cli.output import show_json
from fencepost.errors import FencepostError

_AUTHORITY: Final = "ca"
_AUTHORITY_DAYS: Final = 3650


@click.group()
def certificate() -> None:
    """Create certificates for trying out TLS.

    \b
    Examples:
      fencepost certificate create certificates --host broker.example --client alice
    """


@certificate.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name or IP address of the server; repeatable [default: localhost and 127.0.0.1].",
)
@click.option("--client", "clients", multiple=True, metavar="NAME", help="Create a client certificate; repeatable.")
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Days until they expire.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(folder: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int, as_json: bool) -> None:
    """Create an authority in FOLDER, and certificates that it has signed.

    Writes ca.pem, server.pem and server.key, and NAME.pem and NAME.key for every client, whose principal is then
    User:CN=NAME. An authority that is already in FOLDER (ca.pem, ca.key) signs the new certificates; no file is
    overwritten. Needs `openssl` on the PATH.

    Whoever has ca.key can create further clients. For production use your organisation's authority.

    \b
    Examples:
      fencepost certificate create certificates --client alice
      fencepost certificate create certificates --host broker.example --host 192.0.2.7
      fencepost certificate create certificates --client bob
    """
    if shutil.which("openssl") is None:
        raise FencepostError("`openssl` is not on the PATH: install it, or use certificates from elsewhere")
    with_server = bool(hosts) or not (folder / "server.pem").exists()
    wanted = [*(["server"] if with_server else []), *clients]
    for name in clients:
        if name in (_AUTHORITY, "server") or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise click.BadParameter(
                f"a client's name must be letters, digits, dots, dashes and underscores, not {name!r}"
            )
    for name in wanted:
        for suffix in (".pem", ".key"):
            if (folder / f"{name}{suffix}").exists():
                raise FencepostError(f"{folder / f'{name}{suffix}'} exists: remove it first, or choose another folder")
    folder.mkdir(0o700, parents=True, exist_ok=True)
    written = []
    if not (folder / f"{_AUTHORITY}.pem").exists():
        _create_authority(folder)
        written.append(_AUTHORITY)
    if with_server:
        _create(folder, "server", hosts[0] if hosts else "localhost", days, _server_extensions(hosts))
    for name in clients:
        _create(folder, name, name, days, "extendedKeyUsage=clientAuth")
    written += wanted
    if as_json:
        show_json(
            [{"certificate": str(folder / f"{name}.pem"), "key": str(folder / f"{name}.key")} for name in written]
        )
        return
    for name in written:
        click.echo(f"created {folder / name}.pem and {name}.key")


def _server_extensions(hosts: tuple[str, ...]) -> str:
    names = ",".join(f"{'IP' if _is_ip(host) else 'DNS'}:{host}" for host in hosts or ("localhost", "127.0.0.1"))
    return f"extendedKeyUsage=serverAuth\nsubjectAltName={names}"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _create_authority(folder: Path) -> None:
    key, pem = folder / f"{_AUTHORITY}.key", folder / f"{_AUTHORITY}.pem"
    _create_key(key)
    _openssl("req", "-x509", "-new", "-key", key, "-sha256", "-days", str(_AUTHORITY_DAYS), "-out", pem,
             "-subj", "/CN=fencepost certificate authority")  # fmt: skip


def _create(folder: Path, name: str, common_name: str, days: int, extensions: str) -> None:
    key, pem = folder / f"{name}.key", folder / f"{name}.pem"
    authority = folder / f"{_AUTHORITY}.pem", folder / f"{_AUTHORITY}.key"
    _create_key(key)
    with tempfile.TemporaryDirectory() as work:
        request, extension_file = Path(work) / "request", Path(work) / "extensions"
        extension_file.write_text(f"basicConstraints=CA:FALSE\n{extensions}\n", encoding="utf-8")
        _openssl("req", "-new", "-key", key, "-subj", f"/CN={common_name}", "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", authority[0], "-CAkey", authority[1], "-sha256",
                 "-set_serial", str(int.from_bytes(os.urandom(15), "big")), "-days", str(days),
                 "-extfile", extension_file, "-out", pem)  # fmt: skip


def _create_key(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))  # before openssl writes the key into it
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FencepostError(f"`openssl {arguments[0]}` failed: {' '.join(done.stderr.split())[-500:]}")
