"""JoinGroup (11): join a classic group or rejoin it; the request waits until all members have joined.

Versions 0 to 9. v1 adds the rebalance timeout, v4 makes new members rejoin with the id that they are assigned
(KIP-394), v5 adds static members, v6 is flexible, v7 returns the protocol's type, v8 accepts a reason (ignored), v9 can
tell a returning static leader to skip the assignment.

The rules are in `core.groups.classic`.
"""

from __future__ import annotations

from typing import Final

from fencepost.core.groups.classic_messages import Join
from fencepost.core.security.access import GROUP_READ
from fencepost.server.broker import Broker
from fencepost.server.net.connection import Connection
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.wire import messages

_FIRST_VERSION_WITH_KNOWN_IDS: Final = 4
_FIRST_VERSION_WITH_NULL_PROTOCOL: Final = 7
_FIRST_VERSION_WITH_SKIPPING: Final = 9


def client_host(connection: Connection) -> str:
    """Return the client's address as Kafka writes it, with Java's slash in front."""
    return "/" + connection.peer.rpartition(":")[0]


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    message, version, connection = request.message, request.version, request.connection
    if not request.may(GROUP_READ, message.group_id):
        return _refused(message.member_id, version)
    session_timeout_ms = messages.ms(message.session_timeout)
    joining = broker.groups.join(
        message.group_id,
        Join(
            member_id=message.member_id,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=messages.ms(getattr(message, "rebalance_timeout", session_timeout_ms)),
            protocol_type=message.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
            instance_id=getattr(message, "group_instance_id", None),
            client_id=request.client_id or "",
            client_host=client_host(connection),
            needs_known_id=version >= _FIRST_VERSION_WITH_KNOWN_IDS,
            may_skip_assignment=version >= _FIRST_VERSION_WITH_SKIPPING,
        ),
    )
    del message, request  # the group counts and keeps what it needs; the wait may be long
    connection.release_request()
    result = await joining
    no_protocol = None if version >= _FIRST_VERSION_WITH_NULL_PROTOCOL else ""
    return {
        "error_code": result.error,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol if result.protocol is not None else no_protocol,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in result.members
        ],
    }


def _refused(member_id: str, version: int) -> Fields:
    return {
        "error_code": GROUP_READ.refusal,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None if version >= _FIRST_VERSION_WITH_NULL_PROTOCOL else "",
        "leader": "",
        "skip_assignment": False,
        "member_id": member_id,
        "members": [],
    }


API = Api(key=11, name="JoinGroup", versions=(0, 9), handle=handle, waits=True)
