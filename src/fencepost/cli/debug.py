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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fencepost.cli.http_get import DEFAULT_HTTP, HttpServer
from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import Column
from fencepost.core.redaction import scrub
from fencepost.errors import FencepostError

if TYPE_CHECKING:
    from fencepost.client.cluster.settings import ClientSettings


_ENDINGS = (".tar.gz", ".tgz")


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
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Data directory, on the server's machine [default: FENCEPOST_DATA or ./fencepost-data].",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, metavar="SECONDS",
    help="Time limit of each question to the server.",
)  # fmt: skip
@client_command
def bundle(target: ClusterTarget, file: Path, http_address: str, data: Path | None, timeout: float) -> None:
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
    folder = data or Path(os.environ.get("FENCEPOST_DATA") or "fencepost-data")
    found = list(collect(settings, HttpServer(http_address, settings.security), folder, timeout))
    write(file, found)
    rows = ((each.name, "ok" if each.error is None else "missing", each.error or each.what) for each in found)
    target.show(
        {"file": str(file), "parts": [{"name": e.name, "what": e.what, "error": e.error} for e in found]},
        [Column("part"), Column("state"), Column("detail")],
        rows,
        empty="nothing was collected",
    )
    if not target.as_json:
        click.echo(f"\nwrote {file}")
    errors = {each.name: each.error for each in found}
    if errors["server.json"] is not None:
        stacks = "with the stack of every thread" if errors[STACKS] is None else "without stacks"
        known = f"{file} has what is known without the server's help, {stacks}"
        raise FencepostError(f"{errors['server.json']}; {known}")


STACKS: Final = "stacks.txt"
_OF_PROCESS: Final = ("status", "limits", "io", "wchan")
"""Files of /proc/PID that its user may read, and that have no arguments and no environment."""
_STATE: Final = {
    "configuration.json": ("configuration", "settings of the server, without secrets"),
    "troubles.json": ("troubles", "background tasks that fail"),
    "log.txt": ("log", "the last log lines"),
    "tasks.txt": ("tasks", "stacks of the event loop's tasks"),
    "threads.txt": ("threads", "stacks of the threads"),
}
"""Files of the bundle that come from `/debug/state`: the field, and what it is."""


class Part(NamedTuple):
    """One file of the bundle."""

    name: str
    what: str
    text: str = ""
    error: str | None = None
    """Why it is missing."""


def collect(settings: ClientSettings, server: HttpServer, folder: Path, seconds: float) -> Iterator[Part]:
    """Ask the server, and look at its process and directory if they are on this machine. Nothing raises."""
    sasl, tls = settings.security.sasl, settings.security.tls
    secrets = [tls.key_password or ""] if tls is not None else []
    if sasl is not None and sasl.password:  # also as it goes over the wire
        secrets += [sasl.password, base64.b64encode(f"{sasl.username}:{sasl.password}".encode()).decode()]

    def part(name: str, what: str, make: Callable[[], Any]) -> Part:
        try:
            made = make()
            text = made if isinstance(made, str) else json.dumps(made, indent=2, default=str) + "\n"
            return Part(name, what, scrub(text, secrets))
        except (FencepostError, OSError, ValueError) as error:
            return Part(name, what, error=scrub(str(error) or type(error).__name__, secrets))

    yield part("client.json", "versions and settings of this command", lambda: _client(settings, server))
    state: dict[str, Any] = {}
    asked = part("server.json", "versions of the server", lambda: _asked(state, server, seconds))
    yield asked
    for name, (key, what) in _STATE.items() if asked.error is None else ():
        yield part(name, what, partial(state.get, key, ""))
    # A port that does not answer is asked once: every further question would take as long.
    if asked.error is None or " answers " in asked.error:
        yield part("ready.txt", "is it ready for clients?", lambda: server.get("/readyz", seconds=seconds).text)
        yield part("metrics.txt", "metrics", lambda: _page(server, "/metrics", seconds))
    yield part("cluster.json", "brokers and topics, by Kafka's protocol", lambda: _cluster(settings, seconds))
    yield part("data.json", f"files and free space of {folder}", lambda: _directory(folder))
    yield part("process.txt", "the server's process", lambda: _process(_pid(folder)))
    if asked.error is not None:
        yield part(STACKS, "stacks of the threads, by a signal", lambda: _stacks(folder, seconds))


def write(file: Path, found: Sequence[Part]) -> None:
    """Write the file, for its owner's eyes only. An existing file is an error; of one that cannot be written whole
    nothing stays."""
    contents = json.dumps({each.name: each.error or each.what for each in found}, indent=2)
    stem = file.name.removesuffix(".tar.gz").removesuffix(".tgz")
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for part in (Part("contents.json", "", contents), *(each for each in found if each.error is None)):
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


def _asked(state: dict[str, Any], server: HttpServer, seconds: float) -> Any:
    """Fill `state` with what the server says of itself, and return its versions."""
    found = json.loads(_page(server, "/debug/state", seconds))
    if not isinstance(found, dict) or "versions" not in found:
        raise FencepostError(f"{server.url} is not the HTTP port of a fencepost server")
    state |= found
    return found["versions"]


def _cluster(settings: ClientSettings, seconds: float) -> dict[str, Any]:
    from fencepost.client.admin_client import Admin

    hurried = replace(settings, request_timeout=seconds, connect_timeout=min(seconds, settings.connect_timeout))
    with Admin(hurried) as admin:
        cluster = admin.cluster()
        return {
            "id": cluster.cluster_id,
            "brokers": [f"{each.id}: {each.host}:{each.port}" for each in cluster.brokers],
            "topics": {each.name: each.partitions for each in admin.topics(internal=True)},
        }


def _directory(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FencepostError(f"there is no directory {folder} here: --data names the server's, on its machine")
    space = shutil.disk_usage(folder)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    logs = sum(1 for _ in (folder / "logs").iterdir()) if (folder / "logs").is_dir() else 0
    return {"free": space.free, "total": space.total, "files": files, "topics_on_disk": logs}


def _pid(folder: Path) -> int:
    from fencepost.server.storage.datadir import serving_process

    pid = serving_process(folder)
    if pid is None:
        raise FencepostError(f"no server on this machine uses {folder}")
    return pid


def _process(pid: int) -> str:
    found, process = f"process {pid}\n", Path("/proc") / str(pid)
    for name in (*_OF_PROCESS, "fd"):
        try:
            text = (
                (process / name).read_text(errors="replace") if name != "fd" else f"{len(os.listdir(process / name))}"
            )
        except OSError as error:
            text = str(error.strerror)
        found += f"--- {'open files' if name == 'fd' else name}\n{text}\n"
    return found


def _stacks(folder: Path, seconds: float) -> str:
    from fencepost.server.process.stacks import ask_for_stacks

    stacks = ask_for_stacks(folder, _pid(folder), seconds)
    if stacks is None:
        raise FencepostError("the process gives no stacks: it is stopped, another user's, or still starting")
    return stacks
