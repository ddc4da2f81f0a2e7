"""The session of one connection: the listener it came by, and who the client is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from fencepost.core.security.access import Need
from fencepost.core.security.principal import ANONYMOUS, Principal
from fencepost.errors import Malformed
from fencepost.server.config.listener import ListenerConfig

if TYPE_CHECKING:
    from fencepost.server.security.sasl import SaslLogin


class Client(Protocol):
    """The sender of requests: a connection, or a client of the HTTP port."""

    @property
    def session(self) -> Session: ...
    @property
    def peer(self) -> str: ...
    @property
    def client_id(self) -> str: ...


class Session:
    """Only the connection's loop changes it. Handlers read it as `request.session`."""

    __slots__ = (
        "authenticated",
        "client_host",
        "decided_by",
        "decisions",
        "ends_at",
        "listener",
        "login",
        "login_mechanism",
        "principal",
        "was_authenticated",
    )

    def __init__(self, listener: ListenerConfig) -> None:
        self.listener = listener
        """Its `name`, `protocol` and further settings, as they were when the client connected."""
        self.client_host = ""
        """The client's IP address."""
        self.principal: Principal = ANONYMOUS
        self.authenticated = not listener.authenticates
        """The client may send any request. On a listener without SASL that is so from the start."""
        self.was_authenticated = False
        """The client has logged in once on this connection, and cannot become another principal."""
        self.login: SaslLogin | None = None
        """The login in progress."""
        self.login_mechanism = ""
        self.ends_at: float | None = None
        """The time by which the client must log in again (KIP-368); None: it need not."""
        self.decisions: dict[tuple[Need, str], bool] = {}
        """Decisions of the authorizer by permission and resource, for the ACLs of version `decided_by`."""
        self.decided_by = -1

    def check_login(self, request_name: str, now: float) -> None:
        """Raise Malformed if the client must log in before it may send this request."""
        if not self.authenticated:
            raise Malformed(f"{request_name} came before the client had logged in (SASL)")
        if self.is_over(now):
            raise Malformed(f"the session of {self.principal} has ended, and the client did not log in again")

    def is_over(self, now: float) -> bool:
        """Tell if the client had to log in again before `now`."""
        return self.ends_at is not None and now > self.ends_at

    def within_login(self, seconds: float, now: float) -> float:
        """Return the wait of a request, shortened so that it does not last longer than the client's login."""
        return seconds if self.ends_at is None else max(min(seconds, self.ends_at - now), 0.0)
