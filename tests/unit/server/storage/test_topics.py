"""Concurrent changes of one topic: each starts from the result of the last, and the store agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

import pytest

from fencepost.errors import ErrorCode
from fencepost.server.net.router import Fields
from fencepost.server.storage.topics import Topic
from fencepost.wire.apis import Key
from tests.support.broker_bed import BrokerBed, running

NONE = ErrorCode.NONE
GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

pytestmark = pytest.mark.unit


class Bed(BrokerBed):
    def topic(self, name: str = "t") -> Topic:
        topic = self.broker.topics.get(name)
        assert topic is not None
        return topic

    async def ask(self, key: int, version: int, fields: Mapping[str, Any]) -> Fields:
        return await self.call(self.connect(), key, version, **fields)

    async def alter(self, name: str, value: str) -> ErrorCode:
        config = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
        answer = await self.ask(Key.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
        return cast("ErrorCode", answer["responses"][0]["error_code"])

    async def grow(self, count: int) -> ErrorCode:
        topic = {"name": "t", "count": count, "assignments": None}
        fields = {"topics": [topic], "timeout": 1000, "validate_only": False}
        answer = await self.ask(Key.CREATE_PARTITIONS, 1, fields)
        return cast("ErrorCode", answer["results"][0]["error_code"])

    async def delete(self) -> ErrorCode:
        answer = await self.ask(Key.DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout": 1000})
        return cast("ErrorCode", answer["responses"][0]["error_code"])


@pytest.fixture
def bed(tmp_path: Path) -> AbstractAsyncContextManager[Bed]:
    """A broker that has one guarded topic, t."""
    return running(lambda: Bed(tmp_path), configs={"fencepost.writer.group": "g"})


async def test_of_two_alterations_at_once_both_stay(bed: Bed) -> None:
    first, second = bed.alter("retention.ms", "1000"), bed.alter("fencepost.reader.group", "r")
    assert [*await asyncio.gather(first, second)] == [NONE, NONE]
    both = {"fencepost.writer.group": "g", "retention.ms": "1000", "fencepost.reader.group": "r"}
    assert bed.topic().configs == both
    await bed.restart()
    assert bed.topic().configs == both


async def test_of_two_numbers_of_partitions_at_once_the_lower_one_is_refused(bed: Bed) -> None:
    """If it were stored last, some partitions would be unreachable after a restart."""
    assert [*await asyncio.gather(bed.grow(8), bed.grow(3))] == [NONE, ErrorCode.INVALID_PARTITIONS]
    assert bed.topic().partition_count == 8
    await bed.restart()
    assert bed.topic().partition_count == 8


async def test_what_comes_behind_a_deletion_finds_no_topic(bed: Bed) -> None:
    assert await bed.alter("fencepost.writer.group", "") is NONE  # nobody deletes a guarded topic
    codes = await asyncio.gather(bed.delete(), bed.alter("retention.ms", "1000"), bed.grow(2), bed.delete())
    assert [*codes] == [NONE, GONE, GONE, GONE]
    await bed.broker.topics.create("t", 1, {})
    await bed.restart()
    assert (bed.topic().configs, bed.topic().partition_count) == ({}, 1)


async def test_a_new_topic_inherits_nothing_from_one_of_its_name(bed: Bed) -> None:
    """An earlier version could leave rows of a deleted topic behind."""
    row = "INSERT INTO topic_configs (topic, name, value) VALUES ('new', 'retention.ms', '1000')"
    await bed.broker.store.execute([(row, ())])
    await bed.broker.topics.create("new", 1, {"retention.ms": "2000"})
    await bed.restart()
    assert bed.topic("new").configs == {"retention.ms": "2000"}
