"""Logins of connections: password checks off the loop, and slower ones after failures.

A password check costs milliseconds of CPU, so it runs in a thread. Few threads do this work, and one address has only a
few checks in them at a time: a flood of wrong passwords from one address delays its own logins, not those of others.
After failures the next attempts wait before they are checked (`core.security.guessing`). A network of IPv6 counts as
one address, because a client can have all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from fencepost.clock import Clock
from fencepost.core.security.guessing import LoginPace
from fencepost.core.security.principal import USER, Principal
from fencepost.server.config.addresses import one_client
from fencepost.server.security.audit import Audit
from fencepost.server.security.sasl import LoginFailed, SaslLogin, SaslReply, TokenCheck, begin
from fencepost.server.security.users import Users

if TYPE_CHECKING:
    from fencepost.server.net.session import Client, Session
    from fencepost.server.security.tokens import Tokens

logger = logging.getLogger(__name__)

_THREADS: Final = 2
_MOST_PER_ADDRESS: Final = 4
"""Password checks of one address at a time; its others wait."""

K = TypeVar("K", bound=Hashable)


class TooManyAttempts(LoginFailed):
    """The attempt would have to wait too long; the password was not looked at."""


class _Turns(Generic[K]):
    """A few turns at a time per key."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._turns: dict[K, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def take(self, key: K) -> AsyncIterator[None]:
        turns, users = self._turns.get(key, (asyncio.Semaphore(self._at_once), 0))
        self._turns[key] = turns, users + 1
        try:
            async with turns:
                yield
        finally:
            turns, users = self._turns[key]
            if users > 1:
                self._turns[key] = turns, users - 1
            else:
                del self._turns[key]


class Logins:
    """The logins of all connections. Used only on the event loop."""

    def __init__(self, users: Users, clock: Clock, tokens: Tokens | None = None, *, audit: Audit) -> None:
        self._audit = audit
        self.tokens = tokens
        """The checks of tokens; a reload sets them if it lets the first listener take tokens."""
        self._users = users
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fencepost-login")
        self._token_threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fencepost-token")
        """Their own, because a token may have to wait for the keys of its issuer."""
        self._monotonic = clock.monotonic
        self._pace = LoginPace()
        self._attempts: _Turns[tuple[str, str]] = _Turns(_MOST_PER_ADDRESS)
        """By address and user. Each looks at the pace only when it is its turn, so it knows the failures before it."""
        self._checks: _Turns[str] = _Turns(_MOST_PER_ADDRESS)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._token_threads.shutdown(cancel_futures=True)

    def begin(self, session: Session, mechanism: str) -> None:
        """Begin a login. One that the session has begun before is dropped."""
        session.login = begin(mechanism, self._users, self.tokens)
        session.login_mechanism = mechanism

    async def advance(self, connection: Client, message: bytes) -> SaslReply:
        """Take the client's next message. When the login is complete, the session has its principal. If the login
        fails, raise LoginFailed: the connection must be closed."""
        session = connection.session
        login = session.login
        assert login is not None
        address = one_client(session.client_host)
        try:
            reply = await self._step(address, login, message)
            if reply.user is not None:
                self._complete(session, reply.user)
                self._audit.login_succeeded(connection, session.login_mechanism)
            return reply
        except LoginFailed as error:
            session.login = None
            session.authenticated = False
            if not isinstance(error, TooManyAttempts):
                self._pace.failed(address, login.user, self._monotonic())
            logger.warning(
                "login failed: %.255r from %s on listener %s by %s: %s",
                login.user, session.client_host, session.listener.name, session.login_mechanism, error.reason,
            )  # fmt: skip
            self._audit.login_failed(connection, login.user, session.login_mechanism, error.reason)
            raise

    def _complete(self, session: Session, user: str) -> None:
        principal = Principal(USER, user)
        if session.was_authenticated and principal != session.principal:
            raise LoginFailed("authentication failed: a connection cannot change its user")
        session.login = None
        session.principal = principal
        session.authenticated = session.was_authenticated = True
        self._pace.succeeded(one_client(session.client_host), user)

    async def _step(self, address: str, login: SaslLogin, message: bytes) -> SaslReply:
        if login.user:  # the user is known since the first message, and this one has the proof: SCRAM
            async with self._attempt(address, login.user):
                step = login.step(message)
        else:
            step = login.step(message)
        if isinstance(step, SaslReply):
            return step
        threads = self._token_threads if isinstance(step, TokenCheck) else self._threads
        async with self._attempt(address, login.user), self._checks.take(address):
            return await asyncio.get_running_loop().run_in_executor(threads, step.run)

    @asynccontextmanager
    async def _attempt(self, address: str, user: str) -> AsyncIterator[None]:
        """Wait until this attempt may be checked, or raise TooManyAttempts."""
        async with self._attempts.take((address, user)):
            wait = self._pace.attempt(address, user, self._monotonic())
            if wait is None:
                raise TooManyAttempts(
                    "authentication failed: too many failed logins from this address; try again later"
                )
            if wait:
                await asyncio.sleep(wait)
            yield
