"""Who may use the HTTP port: the users of the Kafka listeners, by the same passwords, tokens and ACLs."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.core.security.acls import CLUSTER_NAME
from fencepost.server.addresses import one_client
from fencepost.server.listener_settings import ListenerConfig
from fencepost.server.net.session import Session
from fencepost.server.security.sasl import OAUTHBEARER, PLAIN, LoginFailed

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

_LONGEST: Final = 16 * 1024
"""Characters of an Authorization header."""
_REMEMBER_SECONDS: Final = 30.0
"""A program sends its password with every request; it is checked, and the login audited, once in this time."""
_MOST_REMEMBERED: Final = 100
_MOST_LOGINS: Final = 10
"""Logins of one address at a time. A failed one takes seconds, and must not fill the port."""


class _HttpClient(NamedTuple):
    """For logins and the audit log."""

    session: Session
    peer: str
    client_id: str = "http"


class Access:
    """Checks requests. Without authorization everyone who can reach the port may read."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self._logins: Counter[str] = Counter()
        """Logins under way, by address."""
        self._remembered: dict[bytes, tuple[_HttpClient, float]] = {}
        """Clients by the digest of address and header, with the time when they end."""
        self._listener = ListenerConfig(name="http", address=address, protocol="sasl_plaintext", mechanisms=(PLAIN,))

    async def refusal(self, request: Request) -> Response | None:
        """Return the answer to a client that may not see the server's state; None if it may."""
        if not self._broker.authorizer.enabled:
            return None
        host = request.client.host if request.client is not None else ""
        header = request.headers.get("authorization", "")
        digest = hashlib.sha256(f"{host} {header}".encode()).digest()
        now = self._broker.clock.monotonic()
        known = self._remembered.get(digest)
        if known is not None and now < known[1]:
            return self._judge(known[0])
        client = _HttpClient(Session(self._listener), host)
        session = client.session
        session.client_host = host
        login = _login(header)
        if login is None or (login[0] == OAUTHBEARER and self._broker.logins.tokens is None):
            return _unauthorized("a user and a password are needed (basic), or a token (bearer)")
        if self._logins[one_client(host)] >= _MOST_LOGINS:
            return PlainTextResponse("too many logins of this address are under way\n", 429)
        self._logins[one_client(host)] += 1
        try:
            return await self._log_in(client, login, digest)
        finally:
            self._logins[one_client(host)] -= 1
            self._logins += Counter()  # drops those without any

    async def _log_in(self, client: _HttpClient, login: tuple[str, bytes], digest: bytes) -> Response | None:
        session = client.session
        mechanism, message = login
        self._broker.logins.begin(session, mechanism)
        try:
            await self._broker.logins.advance(client, message)
            if not session.authenticated:  # a refused token takes one more message (RFC 7628)
                await self._broker.logins.advance(client, b"\x01")
        except LoginFailed:
            return _unauthorized("the login failed: wrong user, password or token")
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[digest] = client, self._broker.clock.monotonic() + _REMEMBER_SECONDS
        return self._judge(client)

    def _judge(self, client: _HttpClient) -> Response | None:
        session = client.session
        if not self._broker.authorizer.decide(session, CLUSTER_DESCRIBE, CLUSTER_NAME):
            self._broker.audit.denied(client, "HTTP", CLUSTER_DESCRIBE, CLUSTER_NAME)
            text = f"{session.principal} may not DESCRIBE the cluster: a super user can grant it"
            return PlainTextResponse(text + "\n", 403)
        return None


def _login(header: str) -> tuple[str, bytes] | None:
    """Return the SASL mechanism and message that say the same as the header."""
    kind, _, value = header[:_LONGEST].partition(" ")
    if kind.lower() == "bearer" and value:
        return OAUTHBEARER, b"n,,\x01auth=Bearer " + value.strip().encode() + b"\x01\x01"
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (PLAIN, b"\0" + user + b"\0" + password) if colon and b"\0" not in user + password else None


def _unauthorized(text: str) -> Response:
    return PlainTextResponse(text + "\n", 401, headers={"WWW-Authenticate": 'Basic realm="fencepost", charset="UTF-8"'})
