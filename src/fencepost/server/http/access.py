"""Access to the HTTP port: the users of the Kafka listeners, by the same passwords, tokens and ACLs.

A program sends its password or token with every request (basic, bearer). A person logs in with a form and has a session
from then on: the server keeps it, the cookie is only a random key. Either way the login is one of
`server.security.logins`: failures slow down the next ones, and go to the audit log.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import secrets
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from fencepost.clock import Clock
from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.core.security.acls import CLUSTER_NAME
from fencepost.server.config.addresses import is_loopback, one_client, parse_address
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.net.session import Session
from fencepost.server.security.sasl import OAUTHBEARER, PLAIN, LoginFailed

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

_MAX_HEADER_CHARACTERS: Final = 16 * 1024
"""Characters of an Authorization header."""
_REMEMBER_SECONDS: Final = 30.0
"""A program sends its password with every request; it is checked, and the login audited, once in this time."""
_MOST_REMEMBERED: Final = 100
_MOST_LOGINS: Final = 10
"""Logins of one address at a time. A failed one takes seconds, and must not fill the port."""
SESSION_SECONDS: Final = 8 * 3600.0
MOST_SESSIONS: Final = 1000
MOST_OF_A_USER: Final = 20
"""So that nobody pushes the sessions of all others out by logging in again and again."""
_KEY_BYTES: Final = 32


class AccessRefused(Exception):
    """The client may not have the page, or must log in first."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = {"WWW-Authenticate": 'Basic realm="fencepost", charset="UTF-8"'} if status == 401 else {}


class HttpClient(NamedTuple):
    """For logins and the audit log."""

    session: Session
    peer: str
    client_id: str = "http"


class _KeptSession(NamedTuple):
    client: HttpClient
    user: str
    credentials: object
    """Those of the user at the login."""
    ends_at: float


class HttpSessions:
    """The sessions by the digests of their keys: memory that leaks does not give anyone a session."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._sessions: dict[bytes, _KeptSession] = {}
        """In the order of their ends."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, client: HttpClient, user: str, credentials: object) -> str:
        """Return the key of a new session. The oldest session makes way if there are too many, of this user or at
        all."""
        now = self._monotonic()
        own = [digest for digest, kept in self._sessions.items() if kept.user == user]
        if len(own) >= MOST_OF_A_USER:
            del self._sessions[own[0]]
        while self._sessions:
            oldest = next(iter(self._sessions))
            if len(self._sessions) < MOST_SESSIONS and self._sessions[oldest].ends_at > now:
                break
            del self._sessions[oldest]
        key = secrets.token_urlsafe(_KEY_BYTES)
        self._sessions[_digest(key)] = _KeptSession(client, user, credentials, now + SESSION_SECONDS)
        return key

    def find(self, key: str) -> tuple[HttpClient, object] | None:
        """Return the client and the credentials of a session that has not ended."""
        found = self._sessions.get(_digest(key))
        if found is None or found.ends_at <= self._monotonic():
            return None
        return found.client, found.credentials

    def end(self, key: str | None) -> None:
        if key is not None:
            self._sessions.pop(_digest(key), None)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


class _Remembered(NamedTuple):
    """A program whose password or token was checked a moment ago."""

    client: HttpClient
    credentials: object
    """Those of the user at the check; none for a user who exists only in tokens."""
    ends_at: float


class Access:
    """Checks requests. Without authorization everyone who can reach the port may read."""

    def __init__(self, broker: Broker, address: str) -> None:
        self._broker = broker
        self._logins: Counter[str] = Counter()
        """Logins under way, by address."""
        self._remembered: dict[bytes, _Remembered] = {}
        """By the digest of address and header."""
        self._listener = ListenerConfig(name="http", address=address, protocol="sasl_plaintext", mechanisms=(PLAIN,))
        self.sessions = HttpSessions(broker.clock)
        self._is_local = is_loopback(parse_address(address)[0])
        url = broker.config.http_public_url
        self._public_host = urlsplit(url).netloc if url is not None else None
        """The Host header of browsers that come through the proxy."""

    async def require_state(self, request: Request) -> None:
        """Raise AccessRefused if the client may not see the server's state as a whole."""
        client = await self.client(request)
        broker = self._broker
        if broker.authorizer.enabled and not broker.authorizer.decide(client.session, CLUSTER_DESCRIBE, CLUSTER_NAME):
            broker.audit.denied(client, "HTTP", CLUSTER_DESCRIBE, CLUSTER_NAME)
            who = client.session.principal
            raise AccessRefused(403, f"{who} may not DESCRIBE the cluster: a super user can grant it")

    async def require_super_user(self, request: Request) -> None:
        """Raise AccessRefused unless a super user asks, or nobody is asked who they are."""
        client = await self.client(request)
        broker = self._broker
        if broker.authorizer.enabled and str(client.session.principal) not in broker.authorizer.table.super_users:
            broker.audit.denied(client, "HTTP", CLUSTER_DESCRIBE, CLUSTER_NAME)
            raise AccessRefused(403, "only a super user may see this page")

    def require_safe_host(self, request: Request) -> None:
        """Raise AccessRefused if a stranger's web page could have sent a change: where nobody logs in, its name may
        point to this server (DNS rebinding), so a change needs an address that no stranger can have."""
        host = request.headers.get("host", "")
        if not self._broker.authorizer.enabled and host != self._public_host and not _names_this_machine(host):
            reason = "without authorization, changes are made at an IP address or localhost, or at http.public_url"
            raise AccessRefused(403, reason)

    async def client(self, request: Request) -> HttpClient:
        """Return who asks; raise AccessRefused if they must log in first."""
        client = self._new_client(request)
        if not self._broker.authorizer.enabled:
            host = request.headers.get("host", "")
            if self._is_local and host != self._public_host and not _names_this_machine(host):
                raise AccessRefused(403, "this port is for this machine only: ask for localhost or an IP address")
            return client
        known = self.logged_in(request)
        if known is not None and "authorization" not in request.headers:
            return known
        header = request.headers.get("authorization", "")
        digest = hashlib.sha256(f"{client.peer} {header}".encode()).digest()
        remembered = self._remembered.get(digest)
        if remembered is not None and self._is_valid(remembered):
            return remembered.client
        login = _login(header)
        if login is None or (login[0] == OAUTHBEARER and self._broker.logins.tokens is None):
            raise AccessRefused(401, "a user and a password are needed (basic), or a token (bearer)")
        ends_ms = await self._log_in(client, *login)
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        clock, seconds = self._broker.clock, _REMEMBER_SECONDS
        if ends_ms is not None:  # a token's end
            seconds = min(seconds, (ends_ms - clock.now_ms()) / 1000)
        self._remembered[digest] = _Remembered(client, self._credentials(client), clock.monotonic() + seconds)
        return client

    def _credentials(self, client: HttpClient) -> object:
        return self._broker.users.of(client.session.principal.name)

    def _is_valid(self, remembered: _Remembered) -> bool:
        if self._broker.clock.monotonic() >= remembered.ends_at:
            return False
        return self._credentials(remembered.client) == remembered.credentials  # else removed, or another password

    def logged_in(self, request: Request) -> HttpClient | None:
        """Return the client of the request's session, if there is one and its user is still the same."""
        key = request.cookies.get(cookie_name(request))
        found = self.sessions.find(key) if key else None
        if found is None:
            return None
        client, credentials = found
        if self._credentials(client) != credentials:  # removed, or another password
            self.sessions.end(key)
            return None
        here = self._new_client(request)
        if here.peer == client.peer:
            return client
        # ACLs may name hosts: they are about where the request comes from, not where the login came from.
        here.session.principal = client.session.principal
        here.session.authenticated = here.session.was_authenticated = True
        return here

    async def begin_session(self, request: Request, user: str, password: str) -> str:
        """Log in a user, and return the key of the new session; raise AccessRefused."""
        client = self._new_client(request)
        name, secret = user.encode(), password.encode()
        if b"\0" in name + secret:
            raise AccessRefused(401, "the login failed: wrong user or password")
        credentials = self._broker.users.of(user)  # before the login: a change meanwhile must end the session
        await self._log_in(client, PLAIN, b"\0" + name + b"\0" + secret)
        return self.sessions.begin(client, user, credentials)

    def _new_client(self, request: Request) -> HttpClient:
        host = request.client.host if request.client is not None else ""
        client = HttpClient(Session(self._listener), host)
        client.session.client_host = host
        return client

    async def _log_in(self, client: HttpClient, mechanism: str, message: bytes) -> int | None:
        """Log in, and return the time when the credential ends, in ms since 1970; raise AccessRefused."""
        address = one_client(client.peer)
        if self._logins[address] >= _MOST_LOGINS:
            raise AccessRefused(429, "too many logins of this address are under way")
        self._logins[address] += 1
        session = client.session
        try:
            self._broker.logins.begin(session, mechanism)
            reply = await self._broker.logins.advance(client, message)
            if not session.authenticated:  # a refused token takes one more message (RFC 7628)
                reply = await self._broker.logins.advance(client, b"\x01")
            return reply.ends_ms
        except LoginFailed:
            raise AccessRefused(401, "the login failed: wrong user, password or token") from None
        finally:
            self._logins[address] -= 1
            self._logins += Counter()  # drops those without any


def cookie_name(request: Request) -> str:
    """Return the session cookie's name. Under TLS its prefix makes browsers demand that only this host has set it."""
    return "__Host-fencepost" if request.url.scheme == "https" else "fencepost"


def _names_this_machine(host: str) -> bool:
    """Tell if a Host header is one that a stranger's web page cannot have. Its own name may point to 127.0.0.1 the
    next time the browser asks, and the browser would let the page read the answer (DNS rebinding)."""
    try:
        name = urlsplit(f"//{host}").hostname or "localhost"  # none: no browser
        if name.rpartition(".")[2] != "localhost":
            ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _login(header: str) -> tuple[str, bytes] | None:
    """Return the SASL mechanism and message that say the same as the header."""
    kind, _, value = header[:_MAX_HEADER_CHARACTERS].partition(" ")
    if kind.lower() == "bearer" and value:
        return OAUTHBEARER, b"n,,\x01auth=Bearer " + value.strip().encode() + b"\x01\x01"
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (PLAIN, b"\0" + user + b"\0" + password) if colon and b"\0" not in user + password else None
