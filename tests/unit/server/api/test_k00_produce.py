"""A Produce request of several large batches lets others go ahead between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import UUID

import pytest

from fencepost.core.own.ownership import RESET, ClaimedResource
from fencepost.core.transactions import NOBODY
from fencepost.errors import ErrorCode
from fencepost.kernel import encode_batch
from fencepost.server.api import APIS
from fencepost.server.coordinators.guards import StaleRequest
from fencepost.server.net.connection import Connection
from fencepost.server.net.router import Answer, ApiRequest, Deferred
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key
from fencepost.wire.hot import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)
from tests.support.batches import batch
from tests.support.broker_bed import BrokerBed, running

pytestmark = pytest.mark.unit

VERSION = 9
VERSION_WITH_IDS = 13
PARTITIONS = 4
LARGE = bytes(70_000)


class Bed(BrokerBed):
    def __init__(self, data: Path, sync: Literal["os", "always"] = "os") -> None:
        (data / "logs").mkdir()
        super().__init__(data, sync=sync)

    def connect(self) -> Connection:
        """Return a connection whose turn is over after each batch."""
        connection = super().connect()
        connection.turn.is_long = lambda: True  # type: ignore[method-assign]
        return connection

    async def open(self) -> None:
        for index in range(PARTITIONS):
            await self.broker.partition("t", index).open_to_write()

    def produce(
        self, connection: Connection, value: bytes = LARGE, transactional_id: str | None = None
    ) -> Answer | Awaitable[Answer]:
        records = memoryview(batch([value], timestamps=[self.clock.now_ms()]))
        return self.produce_batches(connection, [records] * PARTITIONS, transactional_id)

    def produce_batches(
        self,
        connection: Connection,
        batches: Sequence[memoryview],
        transactional_id: str | None = None,
        topic_id: UUID | None = None,
    ) -> Answer | Awaitable[Answer]:
        """Produce one batch per partition, to the topic of this id or to t."""
        version = VERSION if topic_id is None else VERSION_WITH_IDS
        rows = [ProducePartition(index, records) for index, records in enumerate(batches)]
        topic = ProduceTopic("t" if topic_id is None else None, topic_id, rows)
        message = ProduceRequest(transactional_id, -1, 1000, [topic])
        body = memoryview(bytearray().join(encode_produce_request(version, message)))
        request = ApiRequest(Key.PRODUCE, version, None, body, 0, connection)
        return APIS[Key.PRODUCE].handle(self.broker, request)

    def appended(self) -> list[int]:
        """The records of clients in each partition."""
        return [self.broker.partition("t", index).appended_records for index in range(PARTITIONS)]

    def ends(self) -> list[int]:
        """The readable records of each partition."""
        logs = [self.broker.partition("t", index).log for index in range(PARTITIONS)]
        return [0 if log is None else log.high_watermark for log in logs]


class Rest(Awaitable[Answer]):
    """Handle a request up to its first pause, and the rest of it when this is awaited."""

    def __init__(self, work: Answer | Awaitable[Answer]) -> None:
        assert isinstance(work, Awaitable)
        self._steps = work.__await__()
        assert next(self._steps) is None

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._steps


Test: TypeAlias = Callable[[Bed], Awaitable[None]]


def run(data: Path, test: Test, sync: Literal["os", "always"] = "os", guard: str = "") -> None:
    configs = {"fencepost.writer.group": guard} if guard else {}

    async def main() -> None:
        async with running(lambda: Bed(data, sync), PARTITIONS, configs) as bed:
            await test(bed)

    asyncio.run(main())


async def outcome(answer: Answer | Awaitable[Answer], version: int = VERSION) -> list[ProducedPartition]:
    if isinstance(answer, Awaitable):
        answer = await answer
    if isinstance(answer, Deferred):
        await answer.ready
        answer = answer.finish()
    assert isinstance(answer, list)
    [topic] = decode_produce_response(version, memoryview(b"".join(answer))).topics
    return topic.partitions


@pytest.mark.parametrize("sync", ["os", "always"])
def test_others_go_ahead_between_two_large_batches(tmp_path: Path, sync: Literal["os", "always"]) -> None:
    async def test(bed: Bed) -> None:
        await bed.open()
        answer = bed.produce(bed.connect())
        assert isinstance(answer, Awaitable)
        assert bed.appended() == [1, 0, 0, 0]
        if sync == "os":
            assert bed.ends() == [1, 0, 0, 0], "readers see what is appended before others have their turn"
        assert [part.error_code for part in await outcome(answer)] == [0] * PARTITIONS
        assert bed.ends() == [1] * PARTITIONS

    run(tmp_path, test, sync)


def test_a_request_that_takes_a_short_time_is_handled_in_one_piece(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        await bed.open()
        connection = bed.connect()
        del connection.turn.is_long
        assert isinstance(bed.produce(connection), list)
        assert bed.ends() == [1] * PARTITIONS

    run(tmp_path, test)


def test_what_an_owner_has_not_appended_when_it_is_severed_is_never_appended(tmp_path: Path) -> None:
    """OWN-9."""

    async def test(bed: Bed) -> None:
        await bed.open()
        old, new = bed.connect(), bed.connect()
        resources = [ClaimedResource(f"t-{index}", RESET) for index in range(PARTITIONS)]
        await bed.broker.owners.claim(old, "writers", resources)
        answer = bed.produce(old)
        await bed.broker.owners.claim(new, "writers", resources)
        assert bed.ends() == [1, 0, 0, 0], "the new owner finds what the one before has appended"
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [part.error_code for part in await outcome(answer)] == [0, refused, refused, refused]
        assert bed.ends() == [1, 0, 0, 0]

    run(tmp_path, test, guard="writers")


def test_a_request_whose_transaction_ends_between_two_batches_is_not_continued(tmp_path: Path) -> None:
    """The next transaction of the same id may have the same epoch, and nothing else in a batch tells them apart."""

    async def test(bed: Bed) -> None:
        await bed.open()
        connection, transactions = bed.connect(), bed.broker.transactions
        who = await transactions.init("name", 60_000, NOBODY, connection)
        everything = {TopicPartition("t", index) for index in range(PARTITIONS)}
        await transactions.add("name", who, connection, partitions=everything)
        answer = bed.produce(connection, transactional_id="name")
        assert isinstance(answer, Awaitable)
        await transactions.end("name", who, connection, commit=False)
        with pytest.raises(StaleRequest):
            await answer
        assert bed.appended() == [1, 0, 0, 0]

    run(tmp_path, test)


def test_the_rest_of_a_request_is_never_appended_to_the_next_transaction(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        await bed.open()
        old, new, transactions = bed.connect(), bed.connect(), bed.broker.transactions
        who = await transactions.init("name", 60_000, NOBODY, old)
        everything = {TopicPartition("t", index) for index in range(PARTITIONS)}
        await transactions.add("name", who, old, partitions=everything)
        row = (None, LARGE, bed.clock.now_ms(), None)
        records = encode_batch([row], pid=who.pid, epoch=who.epoch, base_sequence=0, transactional=True)
        batches = [memoryview(bytearray(records)) for _ in range(PARTITIONS)]
        rest = Rest(bed.produce_batches(old, batches, "name"))
        assert bed.appended() == [1, 0, 0, 0]
        await transactions.end("name", who, new, commit=False)
        await transactions.add("name", who, new, partitions=everything)
        with pytest.raises(StaleRequest):
            await rest
        assert bed.appended() == [1, 0, 0, 0]

    run(tmp_path, test)


def test_the_rest_of_a_request_is_not_appended_to_a_new_topic_of_the_same_name(tmp_path: Path) -> None:
    """The client has named the topic by its id, so it does not mean the new one."""

    async def test(bed: Bed) -> None:
        await bed.open()
        topic = bed.broker.topics.require("t")
        batches = [memoryview(batch([LARGE], timestamps=[bed.clock.now_ms()])) for _ in range(PARTITIONS)]
        rest = Rest(bed.produce_batches(bed.connect(), batches, topic_id=topic.topic_id))
        assert bed.appended() == [1, 0, 0, 0]
        await bed.broker.topics.delete(topic)
        await bed.broker.topics.create("t", PARTITIONS, {})
        await bed.open()
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        produced = await outcome(rest, VERSION_WITH_IDS)
        assert [part.error_code for part in produced[1:]] == [unknown] * (PARTITIONS - 1)
        assert bed.appended() == [0] * PARTITIONS

    run(tmp_path, test)
