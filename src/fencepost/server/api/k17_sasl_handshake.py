"""SaslHandshake (17): choose the mechanism of a login, the client's first step on a listener with SASL.

Version 1. v0, after which clients send bare SASL bytes instead of SaslAuthenticate, is not supported.
"""

from __future__ import annotations

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    session = request.session
    mechanisms = list(session.listener.mechanisms)
    if not session.listener.authenticates:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
    if request.message.mechanism not in mechanisms:
        session.authenticated = False
        request.connection.expel()
        return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": mechanisms}
    if session.was_authenticated and request.message.mechanism != session.login_mechanism:
        session.authenticated = False
        request.connection.expel()
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": mechanisms}
    broker.logins.begin(session, request.message.mechanism)
    return {"error_code": ErrorCode.NONE, "mechanisms": mechanisms}


API = Api(key=17, name="SaslHandshake", versions=(1, 1), handle=handle)
