"""The control socket of a server: how a program on the same machine, of the same user, asks for something.

The socket `control.sock` lies in the data directory, with access for its owner alone: who can read the files of the
server may ask it to keep them still, or to read its configuration again, so no login is needed. A client sends a line
and reads a line, both JSON:

    {"ask": "reload"}   {"applied": …, "needs_restart": …, "mistakes": …}, or {"error": TEXT}
    {"ask": "pin"}      {"folder": NAME}, or {"error": TEXT}

A pin is for a backup. NAME is a folder in `pinned`. It is not a path, because the server may know its data directory by
another one: in a container, for example.

The pin is removed when the connection ends, also if the client is killed. A client whose backup is whole says so
before, with the line `done`: `/metrics` tells when that was last. While the client copies, it sends empty lines
as signs of life. If none comes for ten minutes it is hung, perhaps in a disk that does not answer: the server then
sends {"error": TEXT}, ends the connection and removes the pin, which would otherwise keep space for ever.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.errors import FencepostError, StorageError
from fencepost.server.backup.pins import FOLDER, Pins

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

logger = logging.getLogger(__name__)

NAME: Final = "control.sock"
_DONE: Final = b"done\n"
BACKED_UP: Final = "backed-up"
"""An empty file in the data directory, as old as the last whole backup of the running server. It is no row of the
store: the next backup would have to copy the store only because of it."""
_LONGEST_PATH: Final = 100
"""The address of a socket has room for 104 to 108 bytes."""
_ANSWER_SECONDS: Final = 120.0
SILENCE_SECONDS: Final = 600.0
"""A client that gives no sign of life for so long is hung."""
_SIGN_SECONDS: Final = 1.0
"""Shortest time between two signs of life."""


class Control:
    """The socket, for as long as the server runs."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._pins = Pins(broker)
        self._path = broker.directory.path / NAME
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the socket. Without one the server works, but only a stopped server can be backed up."""
        await self._pins.sweep()
        if not hasattr(socket, "AF_UNIX"):
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with suppress(FileNotFoundError):
                self._path.unlink()  # a killed server left it; the directory's lock is ours
            with _address(self._path) as address:
                listening.bind(address)
                os.chmod(self._path, 0o600)
                listening.setblocking(False)
                # Inside, because asyncio may look at the address.
                self._server = await asyncio.start_unix_server(self._connected, sock=listening)
        except (OSError, NotImplementedError) as error:
            listening.close()
            logger.warning("cannot open %s (%s): stop the server to back it up", self._path, error)

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        with suppress(OSError):
            self._path.unlink()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.ensure_future(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        folder: Path | None = None
        try:
            answer: dict[str, Any]
            try:
                request = json.loads(await reader.readline() or b"{}")
                if request == {"ask": "pin"}:
                    folder = await self._pins.take()
                    answer = {"folder": folder.name}
                elif request != {"ask": "reload"}:
                    raise StorageError(f"this server does not know the request {request!r}")
                elif self._broker.reload is None:
                    raise StorageError("the server was started without --config: restart it")
                else:
                    answer = asdict(await self._broker.reload())
            except (FencepostError, ValueError) as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
            if folder is not None and not await ended(reader, SILENCE_SECONDS, self._done):
                logger.warning("a backup gave no sign of life for %s s: its files are released", SILENCE_SECONDS)
                gone = f"the server released the files: it heard nothing of this backup for {SILENCE_SECONDS:g} s"
                writer.write(json.dumps({"error": gone}).encode() + b"\n")
        except ConnectionError:
            pass
        finally:
            writer.close()
            if folder is not None:
                await asyncio.shield(self._pins.drop(folder))

    def _done(self) -> None:
        with suppress(OSError):
            (self._path.parent / BACKED_UP).touch()


async def ended(reader: asyncio.StreamReader, silence: float, done: Callable[[], None] = lambda: None) -> bool:
    """Wait until the client ends the connection; return False if it is silent for too long before. Call `done` when the
    client says that its backup is whole."""
    while True:
        try:
            async with asyncio.timeout(silence):
                said = await reader.read(1 << 10)
                if not said:
                    return True
                if _DONE in said:
                    done()
        except TimeoutError:
            return False


def ask(data: Path, what: str) -> tuple[socket.socket, dict[str, Any]]:
    """Ask the server of this data directory. Return its answer, and the connection, for the caller to close."""
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asking.settimeout(_ANSWER_SECONDS)
        with _address(data / NAME) as address:
            asking.connect(address)
        asking.sendall(json.dumps({"ask": what}).encode() + b"\n")
        with asking.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline() or b"{}")
    except (OSError, ValueError) as error:
        asking.close()
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"the process that uses {data} does not answer on {NAME} ({reason}): a server that is starting answers "
            "in a moment; for another command, like `fencepost check`, wait until it has ended"
        ) from error
    if not answer or "error" in answer:
        asking.close()
        raise StorageError(str(answer.get("error") or f"the server of {data} has ended"))
    return asking, answer


class PinnedServer:
    """A pin that this process has asked a running server for. The server removes it after `close`."""

    def __init__(self, data: Path) -> None:
        self._socket, answer = ask(data, "pin")
        self.folder = data / FOLDER / answer["folder"]
        self._socket.setblocking(False)
        self._signed = time.monotonic()

    def sign(self) -> None:
        """Show the server that this process copies; call it often."""
        now = time.monotonic()
        if now - self._signed >= _SIGN_SECONDS:
            self._signed = now
            with suppress(OSError):  # a server that has ended left the files where they are
                self._socket.send(b"\n")

    def done(self) -> None:
        """Tell the server that the backup is whole."""
        with suppress(OSError):
            self._socket.send(_DONE)

    def refusal(self) -> str | None:
        """Return the reason for which the server has released the files; None if it has not."""
        with suppress(OSError, ValueError):
            said = json.loads(self._socket.recv(1 << 10))
            return str(said["error"])
        return None

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield the address of a socket at this path. One that is too long is reached through its directory's
    descriptor."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or not Path("/proc/self/fd").exists():
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
