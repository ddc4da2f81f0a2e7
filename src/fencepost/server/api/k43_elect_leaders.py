"""ElectLeaders (43): ELECTION_NOT_NEEDED for every partition, because there is one node. Versions 0 to 2; v2 is
flexible."""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    asked = request.message.topic_partitions
    refusal = ErrorCode.NONE if request.may(CLUSTER_ALTER) else CLUSTER_ALTER.refusal
    if asked is None and refusal is ErrorCode.NONE:
        return {"error_code": ErrorCode.NONE, "replica_election_results": []}
    results: list[Fields] = []
    async for wanted in paced(asked or ()):
        topic = broker.topics.get(wanted.topic)
        rows: list[Fields] = []
        async for index in paced(dict.fromkeys(wanted.partitions)):
            there = topic is not None and 0 <= index < topic.partition_count
            code = refusal or (ErrorCode.ELECTION_NOT_NEEDED if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            rows.append({"partition_id": index, "error_code": code, "error_message": None})
        results.append({"topic": wanted.topic, "partition_result": rows})
    return {"error_code": refusal, "replica_election_results": results}


API = Api(key=43, name="ElectLeaders", versions=(0, 2), handle=handle)
