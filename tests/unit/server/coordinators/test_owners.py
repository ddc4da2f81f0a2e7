"""The fence in single steps: a broker without a listener and connections without sockets, so that a claim can fall
between any two steps of what the owner before had begun."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.groups.offsets import Committed
from fencepost.core.own.ownership import RESET, ClaimedResource, Granted
from fencepost.core.producers.pid import Identity
from fencepost.core.transactions import NOBODY, TransactionMetadata, TransactionState
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.kernel import read_header
from fencepost.log.partition import PartitionLog
from fencepost.server.api import APIS
from fencepost.server.broker import Broker
from fencepost.server.coordinators.owners import Owners
from fencepost.server.coordinators.takeovers import SILENT
from fencepost.server.net.connection import Connection
from fencepost.server.net.router import ApiRequest, Fields
from fencepost.server.storage.partition import REOPEN_AFTER_SECONDS, Partition
from fencepost.server.storage.store import Statement
from fencepost.server.storage.syncer import Syncer
from fencepost.types import Offset, TopicPartition
from fencepost.wire import messages
from fencepost.wire.apis import Key
from tests.support.batches import batch
from tests.support.broker_bed import BrokerBed, running
from tests.support.failing_files import FailingFiles

pytestmark = pytest.mark.unit

T0 = TopicPartition("t", 0)
WRITERS, READERS = "writers", "readers"
ALTER_CONFIGS = 33


class Stored:
    """The broker's store, whose commits a test can hold up or refuse."""

    def __init__(self, broker: Broker) -> None:
        self._execute = broker.store.execute
        self.let_through = asyncio.Event()
        self.let_through.set()
        self.refuses_transactions = False
        broker.store.execute = self.execute  # type: ignore[method-assign]

    def execute(
        self, statements: Sequence[Statement], *, frees: bool = False, at_once: bool = False
    ) -> asyncio.Future[None]:
        if self.refuses_transactions and any("INTO transactions" in sql for sql, _ in statements):
            refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            refused.set_exception(StorageError("the disk is full"))
            return refused
        if self.let_through.is_set():
            return self._execute(statements, frees=frees, at_once=at_once)
        return asyncio.ensure_future(self._execute_later(statements))

    async def _execute_later(self, statements: Sequence[Statement]) -> None:
        await self.let_through.wait()
        await self._execute(statements)


class Bed(BrokerBed):
    def __init__(self, data: Path) -> None:
        (data / "logs").mkdir()
        self.files = FailingFiles(data)
        super().__init__(data, sync="always", files=self.files)
        self.clock.advance(60)
        self.store = Stored(self.broker)

    async def claim(self, connection: Connection, group: str = WRITERS) -> None:
        judged = await self.broker.owners.claim(connection, group, [ClaimedResource("t-0", RESET)])
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

    async def write(self, values: Sequence[bytes]) -> None:
        """Appended, and synced if the disk lets them."""
        partition = self.broker.partition("t", 0)
        await partition.open()
        data = memoryview(bytearray(batch(values)))
        partition.append(data, read_header(data), self.clock.now_ms())
        await self.broker.syncer.join([partition])

    def readable(self) -> int:
        log = self.broker.partition("t", 0).log
        assert log is not None
        return log.high_watermark

    def state(self) -> TransactionState:
        found = self.broker.transactions.get("name")
        assert found is not None
        return found.state


class Opening:
    """Of partitions, which a test can hold up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    @contextmanager
    def held_up(self) -> Iterator[None]:
        gate, open_at_once = asyncio.Event(), Partition.open

        async def open_later(partition: Partition) -> PartitionLog:
            await gate.wait()
            return await open_at_once(partition)

        with self._monkeypatch.context() as slow:
            slow.setattr(Partition, "open", open_later)
            yield
        gate.set()


async def turns(number: int = 5) -> None:
    """What can be done without waiting for anything outside is done."""
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.fixture
def bed(tmp_path: Path) -> AbstractAsyncContextManager[Bed]:
    """A broker that has one topic, t, guarded both ways."""
    return running(
        lambda: Bed(tmp_path), configs={"fencepost.writer.group": WRITERS, "fencepost.reader.group": READERS}
    )


# --- transactions ---


async def test_a_partition_being_added_to_a_transaction_at_the_claim_is_not_committed(
    bed: Bed,
) -> None:
    """OWN-9: accepted from the owner, stored when there was another one."""
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
    assert bed.state() is TransactionState.COMPLETE_ABORT
    with pytest.raises(ServerError) as refused:
        await bed.commit(bed.connect(), who)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("what", ["a partition", "an offset"])
async def test_a_request_that_waited_adds_no_partition_that_was_given_back_meanwhile(bed: Bed, what: str) -> None:
    """OWN-9: ownership counts at the moment of the effect, not when the request arrived."""
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


@pytest.mark.parametrize(("group", "resource"), [(READERS, "t-0"), ("others", "t-0"), (WRITERS, "t-00")])
async def test_what_gives_no_right_to_write_ends_no_transaction_that_writes(
    bed: Bed, group: str, resource: str
) -> None:
    """OWN-9: the fence of a guarded topic is its group's and the very resource's, taken over or given back."""
    owner, another = bed.connect(), bed.connect()
    await bed.claim(owner)
    who = await bed.producer(owner)
    await bed.add(owner, who)
    for connection in (owner, another):
        await bed.broker.owners.claim(connection, group, [ClaimedResource(resource)])
        bed.broker.owners.release(connection, group, [resource])
    await bed.commit(owner, who)
    assert bed.state() is TransactionState.COMPLETE_COMMIT


async def test_a_transaction_the_store_cannot_abort_is_never_committed_and_delays_claims(
    bed: Bed,
) -> None:
    """OWN-9: asking again does not get past what made the first claim fail."""
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
    assert bed.state() is TransactionState.COMPLETE_ABORT


async def test_a_transaction_that_could_not_be_aborted_is_aborted_at_its_commit(
    bed: Bed,
) -> None:
    """OWN-9, where nothing is guarded and nobody claims: what was lost is lost."""
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
    assert bed.state() is TransactionState.ONGOING
    bed.store.refuses_transactions = False
    with pytest.raises(ServerError) as refused:
        await bed.commit(old, who)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED
    assert bed.state() is TransactionState.COMPLETE_ABORT


async def test_a_claim_fails_until_the_old_owners_decisions_are_marked_in_the_log(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWN-9: its records would come to light behind the claim's answer."""
    old, new = bed.connect(), bed.connect()
    await bed.claim(old)
    who = await bed.producer(old)
    await bed.add(old, who)

    async def refuse(transaction: TransactionMetadata, *, again: bool) -> bool:
        return False

    with monkeypatch.context() as broken:
        broken.setattr(bed.broker.transactions.markers, "write_all", refuse)
        await bed.commit(old, who)
        assert bed.state() is TransactionState.PREPARE_COMMIT
        with pytest.raises(StorageError):
            await bed.claim(new)
    await bed.claim(new)
    assert bed.state() is TransactionState.COMPLETE_COMMIT


# --- waiting claims ---


async def test_a_claim_that_is_granted_in_the_moment_when_its_time_is_over_is_granted(bed: Bed) -> None:
    """OWN-9: the table has it as the owner, so it is told so, behind the barrier and with a token that is stored."""
    first, second = bed.connect(), bed.connect()
    await bed.claim(first)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.05
    waiting = asyncio.ensure_future(bed.broker.owners.wait(second, WRITERS, [ClaimedResource("t-0")], 50))
    await turns()

    def keep_the_loop_busy_until_both_are_due() -> None:
        while loop.time() <= deadline + 0.01:
            pass
        loop.call_soon(bed.broker.owners.release, first, WRITERS, ["t-0"])

    loop.call_soon(keep_the_loop_busy_until_both_are_due)
    judged = await waiting
    assert bed.broker.owners.table.owns(second, WRITERS, "t-0")
    assert isinstance(judged, Granted)
    assert bed.broker.store.query("SELECT token FROM own_tokens") == [(judged.rows[0].token,)]


async def test_a_waiting_claim_severed_before_its_grant_is_answered_leaves_no_trace(
    bed: Bed,
) -> None:
    """Tokens never fall: one that is older than what is stored is not stored behind it."""
    first, second, third = bed.connect(), bed.connect(), bed.connect()
    await bed.claim(first)
    waiting = asyncio.ensure_future(bed.broker.owners.wait(second, WRITERS, [ClaimedResource("t-0")], 60_000))
    await turns()
    bed.broker.owners.release(first, WRITERS, ["t-0"])
    await bed.claim(third)
    await waiting
    await bed.broker.store.execute([])
    assert bed.broker.store.query("SELECT token FROM own_tokens") == [(bed.broker.owners.table.last_token,)]


async def test_many_waiting_claims_are_granted_in_order_over_several_turns(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fencepost.server.coordinators.owners._SECONDS", -1.0)
    owners = bed.broker.owners
    first, *others = (bed.connect() for _ in range(4))
    names = ["a", "b", "c"]
    await owners.claim(first, WRITERS, [ClaimedResource(name) for name in names])
    waiting = [
        asyncio.ensure_future(owners.wait(other, WRITERS, [ClaimedResource(name)], 60_000))
        for other, name in zip(others, names, strict=True)
    ]
    await turns()
    owners.release(first, WRITERS, names)
    assert [owners.table.owns(other, WRITERS, name) for other, name in zip(others, names, strict=True)] == [
        True, False, False,
    ]  # fmt: skip
    assert all(isinstance(judged, Granted) for judged in await asyncio.gather(*waiting))


# --- what begins before a claim and would take effect after it ---


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    return Opening(monkeypatch)


async def test_records_are_not_deleted_by_who_lost_the_partition_while_it_was_opened(
    bed: Bed, opening: Opening
) -> None:
    """OWN-9."""
    old, new = bed.connect(), bed.connect()
    await bed.write([b"a", b"b"])
    await bed.claim(old)
    with opening.held_up():
        asked = {"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}
        deleting = asyncio.ensure_future(bed.call(old, Key.DELETE_RECORDS, 1, topics=[asked], timeout=1000))
        await turns()
        await bed.claim(new)
    answer = await deleting
    assert answer["topics"][0]["partitions"][0]["error_code"] is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (await bed.broker.partition("t", 0).open()).start_offset == 0


def marker(*, commit: bool) -> Fields:
    topic = {"name": "t", "partition_indexes": [0]}
    return {
        "producer_id": 7, "producer_epoch": 0, "transaction_result": commit, "topics": [topic], "coordinator_epoch": 0,
    }  # fmt: skip


def marked(answer: Any) -> ErrorCode:
    code: ErrorCode = answer["markers"][0]["topics"][0]["partitions"][0]["error_code"]
    return code


async def test_only_the_owner_commits_a_guarded_hanging_transaction_and_anyone_aborts_it(
    bed: Bed,
) -> None:
    """A commit puts records where only the owner may write (guarded topics)."""
    owner, anyone = bed.connect(), bed.connect()
    await bed.claim(owner)
    for commit, connection, expected in [
        (True, anyone, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (False, anyone, ErrorCode.NONE),
        (True, owner, ErrorCode.NONE),
    ]:
        answer = await bed.call(connection, Key.WRITE_TXN_MARKERS, 1, markers=[marker(commit=commit)])
        assert marked(answer) is expected


async def test_no_marker_is_written_for_who_was_severed_while_the_partition_was_opened(
    bed: Bed, opening: Opening
) -> None:
    """OWN-9."""
    old, new = bed.connect(), bed.connect()
    await bed.write([b"a"])
    await bed.claim(old)
    with opening.held_up():
        marking = asyncio.ensure_future(bed.call(old, Key.WRITE_TXN_MARKERS, 1, markers=[marker(commit=False)]))
        await turns()
        await bed.claim(new)
    assert marked(await marking) is not ErrorCode.NONE
    assert (await bed.broker.partition("t", 0).open()).end_offset == 1


@pytest.mark.parametrize("key", [Key.DELETE_TOPICS, Key.CREATE_PARTITIONS, ALTER_CONFIGS])
async def test_topics_whose_turn_comes_after_the_connection_is_severed_are_left_alone(bed: Bed, key: int) -> None:
    """OWN-9: half received or half worked off makes no difference."""
    fields: dict[int, dict[str, Any]] = {
        Key.DELETE_TOPICS: {"topic_names": ["first", "t"], "timeout": 1000},
        Key.CREATE_PARTITIONS: {
            "topics": [{"name": name, "count": 2, "assignments": None} for name in ("first", "t")],
            "timeout": 1000,
            "validate_only": False,
        },
        ALTER_CONFIGS: {
            "resources": [{"resource_type": 2, "resource_name": name, "configs": []} for name in ("first", "t")],
            "validate_only": False,
        },
    }
    old, new = bed.connect(), bed.connect()
    await bed.broker.topics.create("first", 1, {})
    await bed.claim(old)
    bed.store.let_through.clear()
    changing = asyncio.ensure_future(bed.call(old, key, 1, **fields[key]))
    await turns()
    claiming = asyncio.ensure_future(bed.claim(new))
    await turns()
    bed.store.let_through.set()
    await asyncio.gather(changing, claiming)
    topic = bed.broker.topics.get("t")
    assert topic is not None
    assert topic.partition_count == 1
    assert topic.writer_group == WRITERS


# --- a disk that fails ---


async def test_a_record_whose_sync_failed_is_readable_before_the_next_owner_is_answered(bed: Bed) -> None:
    """OWN-9: it comes to light when the log is opened anew, and that must not be later."""
    old, new = bed.connect(), bed.connect()
    await bed.claim(old)
    await bed.write([b"kept"])
    bed.files.fail_next("sync", errno.EIO)
    await bed.write([b"doubtful"])
    assert bed.readable() == 1
    await bed.claim(new)
    assert bed.readable() == 2


async def test_a_claim_fails_while_it_is_unknown_what_a_failed_sync_left_in_the_log(
    bed: Bed,
) -> None:
    """OWN-9, where the log failed twice within the time in which it is opened anew only once."""
    connections = [bed.connect() for _ in range(3)]
    await bed.claim(connections[0])
    for number in range(2):
        bed.files.fail_next("sync", errno.EIO)
        await bed.write([b"doubtful"])
        if number == 0:
            await bed.claim(connections[1])
    assert bed.readable() == 1
    with pytest.raises(StorageError) as refused:
        await bed.claim(connections[2])
    assert refused.value.retriable
    assert not bed.broker.owners.table.owns(connections[2], WRITERS, "t-0")
    bed.clock.advance(REOPEN_AFTER_SECONDS)
    await bed.claim(connections[2])
    assert bed.readable() == 2


async def test_a_claim_of_many_unsynced_partitions_makes_others_wait_for_few_of_them() -> None:
    class Log:
        failed, high_watermark, end_offset, syncs = None, 0, 1, 0

        def sync(self) -> int:
            self.syncs += 1
            return 1

    class Unsynced:
        name, topic = "t/0", SimpleNamespace(deleted=False)

        def __init__(self) -> None:
            self.log = Log()

        def advance(self, offset: int) -> None:
            self.log.high_watermark = offset

    with ThreadPoolExecutor(2) as threads:
        syncer: Any = Syncer(threads, SimpleNamespace(note=print, clear=lambda *told: None))  # type: ignore[arg-type]
        partitions, bystander = [Unsynced() for _ in range(1_000)], Unsynced()
        owners: Any = Owners.__new__(Owners)
        owners._broker = SimpleNamespace(syncer=syncer)
        owners._partition = lambda name: partitions[int(name)]
        granted = SimpleNamespace(fresh=[SimpleNamespace(name=str(number)) for number in range(len(partitions))])
        claim = asyncio.ensure_future(owners._bring_all_to_light(granted))
        while not syncer.rounds:
            await asyncio.sleep(0)
        await syncer.join([bystander])
        assert sum(partition.log.syncs for partition in partitions) <= 200
        await claim
        assert all(partition.log.high_watermark == 1 for partition in partitions)


async def test_a_silent_owner_and_its_successor_are_remembered(bed: Bed) -> None:
    owners = bed.broker.owners
    old, new = bed.connect(), bed.connect()
    await bed.claim(old)
    owners.set_session(old, 1000)
    bed.clock.advance(2)
    owners._sever_if_silent(old)
    [event] = owners.takeovers
    assert (event.reason, event.group, event.by_time_ms) == (SILENT, WRITERS, -1)
    assert [row.name for row in event.resources] == ["t-0"]
    bed.clock.advance(3)
    await bed.claim(new)
    assert event.by_time_ms == event.time_ms + 3000
    assert len(list(owners.takeovers)) == 1


# --- at once ---


async def test_a_take_over_is_decided_and_answered_in_the_turn_in_which_it_is_read(tmp_path: Path) -> None:
    """A turn of the loop may be long while the owner floods, and there are no syncs to wait for (`sync = "os"`)."""

    async with running(lambda: BrokerBed(tmp_path / "data")) as bed:

        def ask(connection: Connection, generation: int) -> Any:
            fields = {"group": WRITERS, "resources": [{"name": "t-0", "resource": "t-0", "generation": generation}]}
            message = messages.decode_request(Key.OWN, 1, messages.encode_request(Key.OWN, 1, fields))
            return APIS[Key.OWN].handle(bed.broker, ApiRequest(Key.OWN, 1, None, message, 0, connection))

        first, second, third = bed.connect(), bed.connect(), bed.connect()
        await ask(first, 1)  # the store's thread commits this one, and then lets the loop do it
        while bed.broker.store._handed_over != bed.broker.store._done:
            await asyncio.sleep(0.001)
        answer = ask(second, 1)
        assert isinstance(answer, Mapping)
        assert (answer["error_code"], answer["resources"][0]["generation"]) == (ErrorCode.NONE, 2)
        assert first.severed
        refused = ask(third, 1)
        assert isinstance(refused, Mapping)
        assert refused["error_code"] is ErrorCode.ILLEGAL_GENERATION
        assert not second.severed
        (token,) = bed.broker.store.query("SELECT token FROM own_tokens WHERE resource = 't-0'")
        assert token == (answer["resources"][0]["token"],)


async def test_a_claim_whose_client_leaves_at_once_owns_nothing(bed: Bed) -> None:
    """It is judged before its task begins, which may never begin."""
    old, new = bed.connect(), bed.connect()
    await bed.claim(old)
    judged, durable = bed.broker.owners.claim_now(new, WRITERS, [ClaimedResource("t-0", RESET)])
    assert isinstance(judged, Granted)
    assert old.severed
    assert durable
    new.connection_lost(None)
    await turns()
    assert bed.broker.owners.table.ownership(WRITERS, "t-0") is None
    await asyncio.gather(*durable)
