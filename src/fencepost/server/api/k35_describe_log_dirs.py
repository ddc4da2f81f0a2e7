"""DescribeLogDirs (35): the data directory, with the size of each partition.

Versions 1 to 5. v2 is flexible, v4 adds the disk's size. The size of a closed partition is the sum of its files.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.partition import Partition
from fencepost.server.storage.topics import Topic


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_DESCRIBE):
        return {"error_code": CLUSTER_DESCRIBE.refusal, "results": []}
    wanted = await _wanted(broker, request.message.topics)

    def measure() -> Fields:
        disk = shutil.disk_usage(broker.directory.path)
        topics = [
            {"name": name, "partitions": [_measured(partition) for partition in partitions]}
            for name, partitions in wanted.items()
        ]
        return {
            "error_code": ErrorCode.NONE,
            "log_dir": str(broker.directory.path),
            "topics": topics,
            "total_bytes": disk.total,
            "usable_bytes": disk.free,
        }

    measured = await asyncio.get_running_loop().run_in_executor(broker.threads, measure)
    return {"error_code": ErrorCode.NONE, "results": [measured]}


async def _wanted(broker: Broker, asked: Any) -> dict[str, list[Partition]]:
    rows: list[tuple[Topic, Iterable[int]]]
    if asked is None:
        rows = [(topic, range(topic.partition_count)) for topic in broker.topics]
    else:
        found = [(broker.topics.get(row.topic), row.partitions) for row in asked]
        rows = [(topic, dict.fromkeys(indexes)) for topic, indexes in found if topic is not None]
    return {
        topic.name: [partition async for index in paced(indexes) if (partition := topic.partition(index)) is not None]
        async for topic, indexes in paced(rows)
    }


def _measured(partition: Partition) -> Fields:
    size = partition.log.size if partition.log is not None else _size_on_disk(partition.directory)
    return {"partition_index": partition.index, "partition_size": size, "offset_lag": 0, "is_future_key": False}


def _size_on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.log"))


API = Api(key=35, name="DescribeLogDirs", versions=(1, 5), handle=handle)
