"""The fence in single steps: a broker without a listener and connections without sockets, so that a claim can fall
between any two steps of what the owner before had begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from fencepost.core.offsets import Committed
from fencepost.core.ownership import Granted, Wanted
from fencepost.core.pid import Identity
from fencepost.core.transactions import NOBODY, State, Transaction
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.server.broker import Broker
from fencepost.server.connection import Connection
from fencepost.server.listener import Listener
from fencepost.server.settings import ServerConfig
from fencepost.server.store import Statement
from fencepost.types import Offset, TopicPartition

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)
WRITERS, READERS = "writers", "readers"


class Stored:
    """The broker's store, whose commits a test can hold up or refuse."""

    def __init__(self, broker: Broker) -> None:
        self._execute = broker.store.execute
        self.let_through = asyncio.Event()
        self.let_through.set()
        self.refuses_transactions = False
        broker.store.execute = self.execute  # type: ignore[method-assign]

    def execute(self, statements: Sequence[Statement]) -> asyncio.Future[None]:
        if self.refuses_transactions and any("INTO transactions" in sql for sql, _ in statements):
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(StorageError("the disk is full"))
            return refused
        if self.let_through.is_set():
            return self._execute(statements)
        return asyncio.ensure_future(self._execute_later(statements))

    async def _execute_later(self, statements: Sequence[Statement]) -> None:
        await self.let_through.wait()
        await self._execute(statements)


class Bed:
    def __init__(self, data: Path) -> None:
        self.broker = Broker(ServerConfig(data=data, sync="os"))
        self._listener = Listener(self.broker)
        self.store = Stored(self.broker)

    def connect(self) -> Connection:
        return Connection(self._listener)

    async def claim(self, connection: Connection, group: str = WRITERS) -> None:
        judged = await self.broker.owners.claim(connection, group, [Wanted("t-0")])
        assert isinstance(judged, Granted)

    async def producer(self, connection: Connection) -> Identity:
        return await self.broker.transactions.init("name", 60_000, NOBODY, connection)

    async def add(self, connection: Connection, who: Identity, **what: Any) -> None:
        await self.broker.transactions.add("name", who, connection, **(what or {"partitions": {T0}}))

    async def stage(self, connection: Connection, who: Identity) -> None:
        committed = Committed(Offset(7), -1, "", 0)
        await self.broker.transactions.stage("name", who, "group", {T0: committed}, connection)

    async def commit(self, connection: Connection, who: Identity) -> None:
        await self.broker.transactions.end("name", who, connection, commit=True)

    def state(self) -> State:
        found = self.broker.transactions.get("name")
        assert found is not None
        return found.state


async def turns(number: int = 5) -> None:
    """What can be done without waiting for anything outside is done."""
    for _ in range(number):
        await asyncio.sleep(0)


Test: TypeAlias = Callable[[Bed], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Test], None]:
    """Runs a test's coroutine with a broker that has one topic, t, guarded both ways."""

    def run(test: Test) -> None:
        async def main() -> None:
            bed = Bed(tmp_path)
            await bed.broker.start()
            try:
                configs = {"fencepost.writer.group": WRITERS, "fencepost.reader.group": READERS}
                await bed.broker.topics.create("t", 1, configs)
                await test(bed)
            finally:
                await bed.broker.close()

        asyncio.run(main())

    return run


# --- transactions ---


def test_a_partition_that_was_on_its_way_into_a_transaction_at_the_claim_is_not_committed(
    run: Callable[[Test], None],
) -> None:
    """OWN-9: accepted from the owner, stored when there was another one."""

    async def test(bed: Bed) -> None:
        old, new = bed.connect(), bed.connect()
        await bed.claim(old)
        who = await bed.producer(old)
        bed.store.let_through.clear()
        adding = asyncio.ensure_future(bed.add(old, who))
        await turns()
        claiming = asyncio.ensure_future(bed.claim(new))
        await turns()
        bed.store.let_through.set()
        await asyncio.gather(adding, claiming)
        assert bed.state() is State.COMPLETE_ABORT
        with pytest.raises(ServerError) as refused:
            await bed.commit(bed.connect(), who)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED

    run(test)


@pytest.mark.parametrize("what", ["a partition", "an offset"])
def test_a_request_that_waited_for_its_turn_adds_nothing_that_was_given_back_meanwhile(
    run: Callable[[Test], None], what: str
) -> None:
    """OWN-9: ownership counts at the moment of the effect, not when the request arrived."""

    async def test(bed: Bed) -> None:
        old = bed.connect()
        group = WRITERS if what == "a partition" else READERS
        await bed.claim(old, group)
        who = await bed.producer(old)
        await bed.add(old, who, group="group")
        bed.store.let_through.clear()
        first = asyncio.ensure_future(bed.add(old, who, group="another"))  # its turn is not over
        await turns()
        second = asyncio.ensure_future(bed.add(old, who) if what == "a partition" else bed.stage(old, who))
        await turns()
        bed.broker.owners.release(old, group, ["t-0"])
        bed.store.let_through.set()
        await first
        with pytest.raises(ServerError) as refused:
            await second
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(test)


def test_a_transaction_that_the_store_does_not_let_be_aborted_is_never_committed_and_holds_up_every_claim(
    run: Callable[[Test], None],
) -> None:
    """OWN-9: asking again does not get past what made the first claim fail."""

    async def test(bed: Bed) -> None:
        old, new = bed.connect(), bed.connect()
        await bed.claim(old)
        who = await bed.producer(old)
        await bed.add(old, who)
        bed.store.refuses_transactions = True
        for _ in range(3):
            with pytest.raises(StorageError):
                await bed.claim(new)
            assert not bed.broker.owners.table.owns(new, WRITERS, "t-0")
        with pytest.raises(StorageError):
            await bed.commit(bed.connect(), who)
        bed.store.refuses_transactions = False
        await bed.claim(new)
        assert bed.state() is State.COMPLETE_ABORT

    run(test)


def test_a_transaction_that_nobody_could_abort_is_aborted_when_its_producer_wants_to_commit_it(
    run: Callable[[Test], None],
) -> None:
    """OWN-9, where nothing is guarded and nobody claims: what was lost is lost."""

    async def test(bed: Bed) -> None:
        topic = bed.broker.topics.get("t")
        assert topic is not None
        topic.configure({})
        old = bed.connect()
        await bed.claim(old)
        who = await bed.producer(old)
        await bed.add(old, who)
        bed.store.refuses_transactions = True
        bed.broker.owners.release(old, WRITERS, ["t-0"])
        await turns()
        assert bed.state() is State.ONGOING
        bed.store.refuses_transactions = False
        with pytest.raises(ServerError) as refused:
            await bed.commit(old, who)
        assert refused.value.code is ErrorCode.PRODUCER_FENCED
        assert bed.state() is State.COMPLETE_ABORT

    run(test)


def test_a_claim_fails_as_long_as_a_decision_of_the_owner_before_is_not_marked_in_the_log(
    run: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWN-9: its records would come to light behind the claim's answer."""

    async def test(bed: Bed) -> None:
        old, new = bed.connect(), bed.connect()
        await bed.claim(old)
        who = await bed.producer(old)
        await bed.add(old, who)

        async def refuse(transaction: Transaction, *, again: bool) -> bool:
            return False

        with monkeypatch.context() as broken:
            broken.setattr(bed.broker.transactions.markers, "write_all", refuse)
            await bed.commit(old, who)
            assert bed.state() is State.PREPARE_COMMIT
            with pytest.raises(StorageError):
                await bed.claim(new)
        await bed.claim(new)
        assert bed.state() is State.COMPLETE_COMMIT

    run(test)
