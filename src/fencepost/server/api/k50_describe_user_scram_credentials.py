"""DescribeUserScramCredentials (50): RESOURCE_NOT_FOUND for every user, because there are no credentials. Version 0."""

from __future__ import annotations

from collections.abc import Awaitable

from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import in_pieces


def handle(broker: Broker, request: ApiRequest) -> Fields | Awaitable[Fields]:
    return in_pieces(
        dict.fromkeys(user.name for user in request.message.users or ()),
        lambda name: {
            "user": name,
            "error_code": ErrorCode.RESOURCE_NOT_FOUND,
            "error_message": f"user {name!r} has no credentials",
            "credential_infos": [],
        },
        lambda rows: {"error_code": ErrorCode.NONE, "error_message": None, "results": rows},
    )


API = Api(key=50, name="DescribeUserScramCredentials", versions=(0, 0), handle=handle)
