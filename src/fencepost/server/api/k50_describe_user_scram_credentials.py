"""DescribeUserScramCredentials (50): RESOURCE_NOT_FOUND for every user, because there are no credentials. Version 0."""

from __future__ import annotations

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields


def handle(broker: Broker, request: ApiRequest) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "results": [
            {
                "user": user.name,
                "error_code": ErrorCode.RESOURCE_NOT_FOUND,
                "error_message": f"user {user.name!r} has no credentials",
                "credential_infos": [],
            }
            for user in {user.name: user for user in request.message.users or ()}.values()
        ],
    }


API = Api(key=50, name="DescribeUserScramCredentials", versions=(0, 0), handle=handle)
