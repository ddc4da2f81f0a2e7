"""SaslAuthenticate (36): the messages of a login, by the mechanism of the SaslHandshake before it (KIP-152).

Versions 0 to 2. v1 tells the client after how long it must log in again (KIP-368), v2 is flexible. The connection is
closed after a failed login.
"""

from __future__ import annotations

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.security.sasl import LoginFailed


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    session = request.session
    if session.login is None:
        if not session.authenticated:
            request.connection.expel()
        return _refused(ErrorCode.ILLEGAL_SASL_STATE, "send SaslHandshake first")
    try:
        reply = await broker.logins.advance(request.connection, bytes(request.message.auth_bytes))
    except LoginFailed as error:
        request.connection.expel()
        return _refused(error.code, error.reason)
    lifetime_ms = 0
    if reply.user is not None:
        lifetime_ms = broker.config.connections_max_reauth_ms
        if reply.ends_ms is not None:
            left_ms = max(reply.ends_ms - broker.clock.now_ms(), 1)
            lifetime_ms = min(lifetime_ms, left_ms) if lifetime_ms else left_ms
        request.connection.logged_in()
        session.ends_at = broker.clock.monotonic() + lifetime_ms / 1000 if lifetime_ms else None
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "auth_bytes": reply.answer,
        "session_lifetime": lifetime_ms,
    }


def _refused(code: ErrorCode, reason: str) -> Fields:
    return {"error_code": code, "error_message": reason, "auth_bytes": b"", "session_lifetime": 0}


API = Api(key=36, name="SaslAuthenticate", versions=(0, 2), handle=handle, waits=True)
