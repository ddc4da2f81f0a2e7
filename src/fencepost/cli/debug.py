"""`fencepost debug`: one file with everything that helps to find a fault. Each part is collected by itself, and one
that fails leaves the reason in its place."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fencepost.cli.http_get import DEFAULT_HTTP, HttpServer
from fencepost.cli.options import ClusterTarget, client_command, data_option
from fencepost.cli.output import Column
from fencepost.core.redaction import scrub
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.client.cluster.settings import ClientSettings

_ENDINGS: Final = (".tar.gz", ".tgz")


@click.group()
def debug() -> None:
    """Collect what helps to find a fault.

    \b
    Examples:
      fencepost debug bundle fault.tar.gz
    """


@debug.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--http", "http_address", metavar="HOST:PORT", default=DEFAULT_HTTP, show_default=True,
    help="The server's HTTP port; https://HOST:PORT if it has TLS.",
)  # fmt: skip
@data_option
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, metavar="SECONDS",
    help="Time limit of each question to the server.",
)  # fmt: skip
@client_command
def bundle(target: ClusterTarget, file: Path, http_address: str, data: Path, timeout: float) -> None:
    """Write a bundle: configuration, metrics, log lines, stacks.

    It has no passwords, tokens, keys or records, but it has names of topics, users and hosts: look into it before you
    pass it on. With authorization enabled, log in as a super user (-X or --config: sasl.username, sasl.password).

    If the server's event loop hangs, the bundle has what can be known without it: on the server's machine, with --data,
    also the stack of every thread. The command then exits with 1.

    \b
    Examples:
      fencepost debug bundle fault.tar.gz
      fencepost debug bundle fault.tar.gz --data /var/lib/fencepost -X sasl.username=admin
    """
    if not file.name.endswith(_ENDINGS):
        raise click.UsageError(f"FILE must end in {' or '.join(_ENDINGS)}, not {file.name!r}")
    if file.exists():
        raise FencepostError(f"{file} exists already: choose another name")
    settings = target.settings()
    found = list(collect(settings, HttpServer(http_address, settings.security), data, timeout))
    write(file, found)
    target.show(
        {"file": str(file), "parts": [{"name": each.name, "error": each.error} for each in found]},
        [Column("part"), Column("state"), Column("detail")],
        ((each.name, "ok" if each.error is None else "missing", each.error) for each in found),
        empty="nothing was collected",
    )
    if not target.as_json:
        click.echo(f"\nwrote {file}")
    errors = {each.name: each.error for each in found}
    if errors["server.json"] is not None:
        stacks = "with the stack of every thread" if errors["stacks.txt"] is None else "without stacks"
        known = f"{file} has what is known without the server's help, {stacks}"
        raise FencepostError(f"{errors['server.json']}; {known}")


class Part(NamedTuple):
    """One file of the bundle."""

    name: str
    text: str = ""
    error: str | None = None
    """Why it is missing."""


def collect(settings: ClientSettings, server: HttpServer, folder: Path, seconds: float) -> Iterator[Part]:
    """Ask the server, and look at its directory if it is on this machine. Nothing raises."""
    sasl, tls = settings.security.sasl, settings.security.tls
    secrets = [tls.key_password or ""] if tls is not None else []
    if sasl is not None and sasl.password:  # also as it goes over the wire
        secrets += [sasl.password, base64.b64encode(f"{sasl.username}:{sasl.password}".encode()).decode()]

    def part(name: str, make: Callable[[], Any]) -> Part:
        try:
            made = make()
            text = made if isinstance(made, str) else json.dumps(made, indent=2, default=str) + "\n"
            return Part(name, scrub(text, secrets))
        except (FencepostError, OSError, ValueError) as error:
            return Part(name, error=scrub(str(error) or type(error).__name__, secrets))

    yield part("client.json", lambda: _client(settings, server))
    texts: dict[str, str] = {}
    asked = part("server.json", lambda: _asked(texts, server, seconds))
    yield asked
    for name, text in texts.items():
        yield part(f"{name}.txt", partial(str, text))
    if asked.error is None:
        yield part("metrics.txt", lambda: _page(server, "/metrics", seconds))
    else:
        yield part("stacks.txt", lambda: _stacks(folder, seconds))
    yield part("data.json", lambda: _directory(folder))


def write(file: Path, found: Sequence[Part]) -> None:
    """Write the file, for its owner's eyes only. An existing file is an error; of one that cannot be written whole
    nothing stays."""
    contents = json.dumps({each.name: each.error or "ok" for each in found}, indent=2)
    stem = file.name.removesuffix(".tar.gz").removesuffix(".tgz")
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for part in (Part("contents.json", contents), *(each for each in found if each.error is None)):
                content = part.text.encode(errors="backslashreplace")  # names of files need not be UTF-8
                entry = tarfile.TarInfo(f"{stem}/{part.name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(content))
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _client(settings: ClientSettings, server: HttpServer) -> dict[str, Any]:
    from fencepost.server.http.debug import versions

    sasl = settings.security.sasl
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions(),
        "servers": settings.addresses,
        "http": server.url,
        "tls": settings.security.tls is not None,
        "sasl": None if sasl is None else {"mechanism": sasl.mechanism, "username": sasl.username},
    }


def _page(server: HttpServer, path: str, seconds: float) -> str:
    page = server.get(path, seconds=seconds)
    if page.status != 200:
        first = page.text.splitlines()[0] if page.text else "nothing"
        raise FencepostError(f"{server.url}{path} answers {page.status}: {first}")
    return page.body.decode(errors="replace")


def _asked(texts: dict[str, str], server: HttpServer, seconds: float) -> dict[str, Any]:
    """Return what the server says of itself, and put its long texts into `texts`."""
    found = json.loads(_page(server, "/debug/state", seconds))
    if not isinstance(found, dict) or "versions" not in found:
        raise FencepostError(f"{server.url} is not the HTTP port of a fencepost server")
    texts |= found.pop("texts")
    return found


def _directory(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FencepostError(f"there is no directory {folder} here: --data names the server's, on its machine")
    space = shutil.disk_usage(folder)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    logs = sum(1 for _ in (folder / "logs").iterdir()) if (folder / "logs").is_dir() else 0
    return {"free": space.free, "total": space.total, "files": files, "topics_on_disk": logs}


def _stacks(folder: Path, seconds: float) -> str:
    from fencepost.server.process.stacks import ask_for_stacks
    from fencepost.server.storage.datadir import serving_process

    pid = serving_process(folder)
    if pid is None:
        raise FencepostError(f"no server on this machine uses {folder}")
    stacks = ask_for_stacks(folder, pid, seconds)
    if stacks is None:
        raise FencepostError("the process gives no stacks: it is stopped, another user's, or still starting")
    return stacks
