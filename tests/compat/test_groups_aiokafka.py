"""Consumer groups with aiokafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

pytestmark = pytest.mark.compat

PARTITIONS = 4


class Reader:
    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
            **settings,
        )
        self.values: list[bytes] = []

    async def __aenter__(self) -> Reader:
        await self.consumer.start()
        self._task = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.stop()

    async def _read(self) -> None:
        async for message in self.consumer:
            self.values.append(message.value)

    @property
    def assigned(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


def covers(*readers: Reader) -> bool:
    return sorted(index for reader in readers for index in reader.assigned) == list(range(PARTITIONS))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="default"),
        pytest.param({"partition_assignment_strategy": [StickyPartitionAssignor]}, id="sticky"),
        pytest.param({"partition_assignment_strategy": [RoundRobinPartitionAssignor]}, id="roundrobin"),
        pytest.param({"group_instance_id": "one"}, id="static"),
    ],
)
async def test_readers_share_a_topic_and_go_on_where_the_group_was(
    address: str, name: str, four: str, settings: dict[str, Any]
) -> None:
    common = {key: value for key, value in settings.items() if key != "group_instance_id"}
    async with Reader(address, f"group-{name}", four, **settings) as first:
        await until(lambda: len(first.values) == 20)
        await first.consumer.commit()
        async with Reader(address, f"group-{name}", four, **common) as second:
            await until(lambda: covers(first, second) and len(first.assigned) == 2)
            assert second.values == []
        await until(lambda: covers(first))


async def test_groups_are_seen_by_the_admin_client(address: str, name: str, four: str) -> None:
    group = f"group-{name}"
    async with Reader(address, group, four) as reader:
        await until(lambda: len(reader.values) == 20)
        await reader.consumer.commit()
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            assert (group, "consumer") in await admin.list_consumer_groups()
            offsets = await admin.list_consumer_group_offsets(group)
            assert {(p.topic, p.partition): o.offset for p, o in offsets.items()} == {
                (four, index): 5 for index in range(PARTITIONS)
            }
        finally:
            await admin.close()
