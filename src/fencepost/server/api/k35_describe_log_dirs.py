"""DescribeLogDirs (35): the data directory, with the size of each partition.

Versions 1 to 5. v2 is flexible, v4 adds the disk's size. The size of a closed partition is the sum of its files; one
that nobody has used yet has no folder.

There is one measurement at a time, because each may look at every file of the server. All who ask for everything during
one of these get its result.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from fencepost.core.security.access import CLUSTER_DESCRIBE
from fencepost.errors import ErrorCode
from fencepost.server.broker import Broker
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import Topic

_KEPT: Final = "log dirs"
"""The key of the measurement in the broker's `derived`."""


class _Measurement:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.of_all: asyncio.Future[Fields] | None = None
        """The measurement of all partitions that is under way, or next."""

    def done(self, measured: asyncio.Future[Fields]) -> None:
        self.of_all = None
        if not measured.cancelled():
            measured.exception()  # those who asked have it, or have hung up


async def handle(broker: Broker, request: ApiRequest) -> Fields:
    if not request.may(CLUSTER_DESCRIBE):
        return {"error_code": CLUSTER_DESCRIBE.refusal, "results": []}
    measurement: _Measurement = broker.derived.setdefault(_KEPT, _Measurement())
    if request.message.topics is not None:
        measured = await _measure(broker, measurement, request.message.topics)
    else:
        if measurement.of_all is None:
            measurement.of_all = asyncio.ensure_future(_measure(broker, measurement, None))
            measurement.of_all.add_done_callback(measurement.done)
        measured = await asyncio.shield(measurement.of_all)
    return {"error_code": ErrorCode.NONE, "results": [measured]}


async def _measure(broker: Broker, measurement: _Measurement, asked: Any) -> Fields:
    in_thread = asyncio.get_running_loop().run_in_executor
    async with measurement.lock:
        topics = []
        async for topic, indexes in paced(await _wanted(broker, asked)):
            open_sizes = {
                partition.index: partition.log.size
                async for partition in paced(topic.touched())
                if partition.log is not None
            }
            rows = await in_thread(broker.threads, partial(_rows, topic.folder, indexes, open_sizes))
            topics.append({"name": topic.name, "partitions": rows})
        disk = await in_thread(broker.threads, shutil.disk_usage, broker.directory.path)
    return {
        "error_code": ErrorCode.NONE,
        "log_dir": str(broker.directory.path),
        "topics": topics,
        "total_bytes": disk.total,
        "usable_bytes": disk.free,
    }


async def _wanted(broker: Broker, asked: Any) -> list[tuple[Topic, Collection[int]]]:
    if asked is None:
        return [(topic, range(topic.partition_count)) for topic in broker.topics]
    wanted: dict[str, tuple[Topic, dict[int, None]]] = {}
    async for row in paced(asked):
        topic = broker.topics.get(row.topic)
        if topic is not None:
            _, indexes = wanted.setdefault(topic.name, (topic, {}))
            indexes.update(dict.fromkeys(index for index in row.partitions if 0 <= index < topic.partition_count))
    return list(wanted.values())


def _rows(folder: Path, indexes: Iterable[int], open_sizes: Mapping[int, int]) -> list[Fields]:
    """Return the rows of a topic's partitions; called in a thread."""
    try:
        with os.scandir(folder) as entries:
            used = {entry.name for entry in entries}
    except FileNotFoundError:
        used = set()
    return [
        {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}
        for index in indexes
        for size in (open_sizes.get(index) or (_size_on_disk(folder / str(index)) if str(index) in used else 0),)
    ]


def _size_on_disk(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.log"))


API = Api(key=35, name="DescribeLogDirs", versions=(1, 5), handle=handle)
