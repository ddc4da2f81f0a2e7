"""Pages of a server's HTTP port, for commands."""

from __future__ import annotations

import base64
import http.client
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from fencepost.errors import ConfigError, FencepostError

if TYPE_CHECKING:
    from fencepost.client.cluster.security import Security

DEFAULT_HTTP: Final = "127.0.0.1:9644"
_LARGEST: Final = 256 * 1024 * 1024
"""Bytes of a page. More is cut off: whatever answers there need not be a fencepost server."""


class HttpPage(NamedTuple):
    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace").strip()


class HttpServer:
    """A server's HTTP port: HOST:PORT, or http://HOST:PORT, or https://HOST:PORT. Its user and password, or token, and
    the trusted certificates are those of the Kafka listeners. Without TLS they go to this machine only: everyone on
    the way to another one could read them."""

    def __init__(self, address: str, security: Security, *, logs_in: bool = True) -> None:
        """`logs_in`: send user and password, or the token, if there are any. Raise ConfigError if that is not safe."""
        from fencepost.server.config.addresses import is_loopback  # here, so that `--help` needs no server

        url = urlsplit(address if "://" in address else f"http://{address}")
        try:
            port = url.port
        except ValueError:
            port = None
        if url.scheme not in ("http", "https") or not url.hostname or port is None or url.path.strip("/"):
            raise ConfigError(f"--http takes HOST:PORT, http://HOST:PORT or https://HOST:PORT, not {address!r}")
        self.url = f"{url.scheme}://{f'[{url.hostname}]' if ':' in url.hostname else url.hostname}:{port}"
        self._host, self._port = url.hostname, port
        self._is_safe = url.scheme == "https"
        self._security = security
        self._logs_in = logs_in and security.sasl is not None
        if self._logs_in and not self._is_safe and not is_loopback(self._host):
            raise ConfigError(
                f"{self.url} has no TLS, and the login would go there in clear: take https://{url.netloc}, "
                "or a tunnel to 127.0.0.1"
            )

    def get(self, path: str, *, seconds: float) -> HttpPage:
        """Return the page, whatever its status, or raise FencepostError if none comes. `seconds` limits each wait for
        the network."""
        headers = {"Connection": "close", **self._login()}
        connection = (
            http.client.HTTPSConnection(self._host, self._port, timeout=seconds, context=self._context())
            if self._is_safe
            else http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        )
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return HttpPage(answer.status, answer.read(_LARGEST))
        except TimeoutError as error:
            raise FencepostError(f"{self.url} does not answer within {seconds:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            raise FencepostError(f"cannot read {self.url}{path}: {reason}") from error
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        from fencepost.client.cluster.security import Tls

        return (self._security.tls or Tls()).context()

    def _login(self) -> dict[str, str]:
        sasl = self._security.sasl
        if sasl is None or not self._logs_in:
            return {}
        if sasl.token is not None:
            return {"Authorization": f"Bearer {sasl.token()}"}
        named = f"{sasl.username}:{sasl.password}".encode()
        return {"Authorization": "Basic " + base64.b64encode(named).decode()}
