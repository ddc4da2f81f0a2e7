"""DescribeUserScramCredentials (50): the users, with mechanism and iterations of their credentials. Version 0."""

from __future__ import annotations

from collections import Counter

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_DESCRIBE):
        reason = request.refusal(CLUSTER_DESCRIBE)
        return {"error_code": CLUSTER_DESCRIBE.refusal, "error_message": reason, "results": []}
    if request.message.users:
        names = Counter(user.name for user in request.message.users)
    else:
        names = Counter(name for name, _ in broker.users)
    rows = [_describe(broker, name, names[name]) async for name in paced(names)]
    return {"error_code": ErrorCode.NONE, "error_message": None, "results": rows}


def _describe(broker: Broker, name: str, times: int) -> Fields:
    answer: Fields = {"user": name, "credential_infos": []}
    if times > 1:
        reason = f"the request names user {name!r} more than once"
        return {**answer, "error_code": ErrorCode.DUPLICATE_RESOURCE, "error_message": reason}
    credentials = broker.users.of(name)
    if not credentials:
        reason = f"user {name!r} has no SCRAM credentials"
        return {**answer, "error_code": ErrorCode.RESOURCE_NOT_FOUND, "error_message": reason}
    return {
        **answer,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "credential_infos": [
            {"mechanism": credential.mechanism, "iterations": credential.iterations} for credential in credentials
        ],
    }


API = Api(key=50, name="DescribeUserScramCredentials", versions=(0, 0), handle=handle)
