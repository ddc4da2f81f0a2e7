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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    found = collect(settings, HttpServer(http_address, settings.security), folder, timeout)
    write(file, found)
    rows = ((each.name, "ok" if each.error is None else "missing", each.error or each.what) for each in found.parts)
    target.show(
        {"file": str(file), "parts": [{"name": e.name, "what": e.what, "error": e.error} for e in found.parts]},
        [Column("part"), Column("state"), Column("detail")],
        rows,
        empty="nothing was collected",
    )
    if not target.as_json:
        click.echo(f"\nwrote {file}")
    _judge(file, found)


def _judge(file: Path, found: Collected) -> None:
    if found.silence is not None:
        stacks = "with the stack of every thread" if found.has_stacks else "without stacks"
        raise FencepostError(f"{found.silence}; {file} has what is known without the server's help, {stacks}")


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


@dataclass(frozen=True)
class Part:
    """One file of the bundle."""

    name: str
    what: str
    text: str = ""
    error: str | None = None
    """Why it is missing."""


@dataclass
class Collected:
    parts: list[Part] = field(default_factory=list)
    silence: str | None = None
    """Why the server's HTTP port said nothing of use; None if it answered."""
    has_stacks: bool = False


def collect(settings: ClientSettings, server: HttpServer, folder: Path, seconds: float) -> Collected:
    """Ask the server, and look at its process and directory if they are on this machine. Nothing raises."""
    secrets = _secrets(settings)
    found = Collected()

    def add(name: str, what: str, make: Callable[[], str]) -> bool:
        try:
            found.parts.append(Part(name, what, scrub(make(), secrets)))
        except (FencepostError, OSError, ValueError) as error:
            found.parts.append(Part(name, what, error=scrub(str(error) or type(error).__name__, secrets)))
            return False
        return True

    add("client.json", "versions and settings of this command", lambda: _json(_client(settings, server)))
    state: dict[str, Any] = {}
    if add("server.json", "versions of the server", lambda: _json(_asked(state, server, seconds))):
        for name, (key, what) in _STATE.items():
            value = state.get(key, "")
            add(name, what, lambda value=value: value if isinstance(value, str) else _json(value))  # type: ignore[misc]
        found.has_stacks = True
    else:
        found.silence = found.parts[-1].error
    # A port that does not answer is asked once: every further question would take as long.
    if found.silence is None or " answers " in found.silence:
        add("ready.txt", "is it ready for clients?", lambda: server.get("/readyz", seconds=seconds).text)
        add("metrics.txt", "metrics", lambda: _page(server, "/metrics", seconds))
    add("cluster.json", "brokers and topics, by Kafka's protocol", lambda: _json(_cluster(settings, seconds)))
    add("data.json", f"files and free space of {folder}", lambda: _json(_directory(folder)))
    add("process.txt", "the server's process", lambda: _process(folder))
    if found.silence is not None:
        found.has_stacks = add("stacks.txt", "stacks of the threads, by a signal", lambda: _stacks(folder, seconds))
    return found


def write(file: Path, found: Collected) -> None:
    """Write the file, for its owner's eyes only. An existing file is an error; of one that cannot be written whole
    nothing stays."""
    contents = json.dumps({each.name: each.error or each.what for each in found.parts}, indent=2)
    parts = [Part("contents.json", "", contents), *(each for each in found.parts if each.error is None)]
    stem = file.name.removesuffix(".tar.gz").removesuffix(".tgz")
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for part in parts:
                content = part.text.encode(errors="backslashreplace")  # names of files need not be UTF-8
                entry = tarfile.TarInfo(f"{stem}/{part.name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(content))
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _secrets(settings: ClientSettings) -> list[str]:
    """Return what this command knows and must not write, also as it goes over the wire."""
    tls, sasl = settings.security.tls, settings.security.sasl
    found = [tls.key_password or ""] if tls is not None else []
    if sasl is not None and sasl.password:
        named = f"{sasl.username}:{sasl.password}".encode()
        found += [sasl.password, base64.b64encode(named).decode()]
    return found


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
    from fencepost.client.admin import Admin

    hurried = replace(settings, request_timeout=seconds, connect_timeout=min(seconds, settings.connect_timeout))
    with Admin(hurried) as admin:
        cluster = admin.cluster()
        topics = admin.topics(internal=True)
    return {
        "id": cluster.cluster_id,
        "brokers": [f"{each.id}: {each.host}:{each.port}" for each in cluster.brokers],
        "topics": {each.name: each.partitions for each in topics},
    }


def _directory(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FencepostError(f"there is no directory {folder} here: --data names the server's, on its machine")
    space = shutil.disk_usage(folder)
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    logs = sum(1 for _ in (folder / "logs").iterdir()) if (folder / "logs").is_dir() else 0
    return {"free": space.free, "total": space.total, "files": files, "topics_on_disk": logs}


def _process(folder: Path) -> str:
    pid = _pid(folder)
    return f"process {pid}\n" + "\n".join(_proc_files(Path("/proc") / str(pid)))


def _pid(folder: Path) -> int:
    from fencepost.server.storage.datadir import serving_process

    pid = serving_process(folder)
    if pid is None:
        raise FencepostError(f"no server on this machine uses {folder}")
    return pid


def _proc_files(process: Path) -> Iterator[str]:
    for name in _OF_PROCESS:
        try:
            yield f"--- {name}\n{(process / name).read_text(errors='replace')}"
        except OSError as error:
            yield f"--- {name}: {error.strerror}\n"
    try:
        yield f"--- open files: {sum(1 for _ in (process / 'fd').iterdir())}\n"
    except OSError as error:
        yield f"--- open files: {error.strerror}\n"


def _stacks(folder: Path, seconds: float) -> str:
    from fencepost.server.stacks import ask_for_stacks

    stacks = ask_for_stacks(folder, _pid(folder), seconds)
    if stacks is None:
        raise FencepostError("the process gives no stacks: it is stopped, another user's, or still starting")
    return stacks


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str) + "\n"
