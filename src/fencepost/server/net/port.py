"""The open socket of one named listener."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fencepost.errors import FencepostError
from fencepost.server.config.addresses import parse_address
from fencepost.server.config.listener import ListenerConfig

if TYPE_CHECKING:
    from fencepost.server.net.tls import ServerTls

_BACKLOG = 1024

Files: TypeAlias = dict[Path, tuple[int, ...]]
"""Files with all that changes when they are written or replaced."""


def make_tls(config: ListenerConfig) -> ServerTls | None:
    """Return the TLS of a listener, or raise WrongSetting; None for a listener without TLS."""
    if not config.encrypts:
        return None
    from fencepost.server.net.tls import ServerTls

    return ServerTls(config)


def look_at_files(config: ListenerConfig) -> Files:
    found: Files = {}
    for path in (config.certificate, config.key, config.client_ca):
        if path is not None:
            try:
                status = path.stat()
            except OSError:
                found[path] = ()
            else:
                found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


class Port:
    def __init__(self, config: ListenerConfig, accept: Callable[[Port], asyncio.BaseProtocol]) -> None:
        self.config = config
        """A reload replaces it; connections keep the settings that they were accepted with."""
        self.files = look_at_files(config)
        """The files of `tls` when it was made: looked at before they were read, so that no change is missed."""
        self.tls = make_tls(config)
        self._accept = accept
        self._server: asyncio.Server | None = None
        self.address = ""
        """HOST:PORT that it listens on, with the port that the system chose for port 0."""

    async def open(self) -> None:
        host, port = parse_address(self.config.address)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: self._accept(self), host, port, backlog=_BACKLOG)
        except OSError as error:
            reason = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise FencepostError(f"cannot listen on {self.config.address}: {reason}") from error
        bound = self._server.sockets[0].getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def adopt(self, other: Port) -> None:
        """Take over another port's settings, and keep the socket."""
        self.config, self.files, self.tls = other.config, other.files, other.tls

    def close(self) -> None:
        """Accept no further connections; the accepted ones stay."""
        if self._server is not None:
            self._server.close()
