"""AlterReplicaLogDirs (34): every replica is in the data directory, the only one. Versions 1 and 2; v2 is flexible."""

from __future__ import annotations

from fencepost.core.security.access import CLUSTER_ALTER
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    refusal = ErrorCode.NONE if request.may(CLUSTER_ALTER) else CLUSTER_ALTER.refusal
    found: dict[str, dict[int, ErrorCode]] = {}
    async for folder in paced(request.message.dirs):
        elsewhere = ErrorCode.NONE if folder.path == str(broker.directory.path) else ErrorCode.LOG_DIR_NOT_FOUND
        async for wanted in paced(folder.topics):
            topic = broker.topics.get(wanted.name)
            rows = found.setdefault(wanted.name, {})
            async for index in paced(wanted.partitions):
                is_there = topic is not None and 0 <= index < topic.partition_count
                unknown = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                rows[index] = refusal or elsewhere or unknown
    results: list[Fields] = []
    async for name, codes in paced(found.items()):
        partitions = [{"partition_index": index, "error_code": code} for index, code in codes.items()]
        results.append({"topic_name": name, "partitions": partitions})
    return {"results": results}


API = Api(key=34, name="AlterReplicaLogDirs", versions=(1, 2), handle=handle)
