"""The transaction coordinator: `core.transactions` on the loop, the store and the logs.

A transaction ends in five steps, and a crash between any two of them leaves it whole:

    1. nothing more is accepted for it (the state has moved)
    2. with `--sync always`, the records of all its partitions are on the disk
    3. the decision and the offsets that were sent with it are committed to the store, together: no way back
    4. markers go into the logs of its partitions
    5. it is complete

Before step 3 a restart finds it ONGOING: it is still the producer's to end, or it times out and is aborted. After
step 3 a restart finds the decision and writes the markers that are missing. A marker that the disk refuses is tried
again until it is in the log; EndTxn is answered meanwhile, and whoever wants to begin the next transaction is told
CONCURRENT_TRANSACTIONS.

Requests for one transactional id are worked off one after the other, and what was begun is brought to its end even if
the connection that asked is gone by then: a decision must not depend on whether somebody still listens.

Delayed requests. Within one epoch Kafka's older protocol cannot tell a late EndTxn or AddPartitionsToTxn from one
that belongs to the next transaction. A late one has something that gives it away: it comes over a connection that its
client has given up, and the client has since spoken over a newer one. So a request that would begin, extend or end a
transaction is refused on a connection older than the newest that has spoken for this epoch, by closing it: a living
client comes back with a new connection, a delayed request does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fencepost.core.groups.offsets import Committed
from fencepost.core.producers.pid import Identity
from fencepost.core.transactions import DECIDED, NOBODY, RESTING, TransactionMetadata, TransactionState
from fencepost.errors import ErrorCode, FencepostError, ServerError, StorageError
from fencepost.server.coordinators import group_rows, transaction_rows
from fencepost.server.coordinators.guards import (
    Resource,
    Rights,
    StaleRequest,
    check_read,
    check_write,
    refuse_severed,
    rights_of,
)
from fencepost.server.coordinators.markers import Markers
from fencepost.server.coordinators.transaction_rows import Overruled
from fencepost.server.health import Chore
from fencepost.server.storage.store import Statement
from fencepost.types import Epoch, Milliseconds, Pid, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection

logger = logging.getLogger(__name__)

SCHEMA: Final = transaction_rows.SCHEMA

_PATROL_SECONDS: Final = 0.25
_FORGET_AFTER_MS: Final[Milliseconds] = 7 * 24 * 60 * 60 * 1000
"""An idle transactional id is forgotten after this long (Kafka: transactional.id.expiration.ms)."""

T = TypeVar("T")


class Entry:
    """A transaction and what the server keeps beside it."""

    __slots__ = (
        "adding", "connections", "doomed", "ended", "lock", "newest_connection", "overruled", "staged", "transaction"
    )  # fmt: skip

    def __init__(self, transaction: TransactionMetadata) -> None:
        self.transaction = transaction
        """Replaced, never changed, once the store has the new one; only a decision shows before (see `_end`)."""
        self.lock = asyncio.Lock()
        self.adding: set[TopicPartition] = set()
        """On their way to the store, to be partitions of the transaction."""
        self.staged: dict[str, dict[TopicPartition, Committed]] = {}
        self.overruled: set[Overruled] = set()
        """Of those staged, what a later commit of the group has replaced for good."""
        self.newest_connection = 0
        """Number of the newest connection that has spoken for the present epoch."""
        self.connections: set[Connection | None] = set()
        """Who has added or written something: with them the transaction ends, if they lose what they own (OWN-9).
        None: whoever it was before the server was started again."""
        self.doomed = False
        """One of those who wrote it has lost what it wrote to: it will be aborted, whatever its producer asks for."""
        self.ended = 0
        """How many came to their end since the server was started."""

    def touches(self, rights: Rights) -> bool:
        """Does it write, or say how far was read, what these are the rights to?"""
        untouched = (
            rights.written.isdisjoint(self.transaction.partitions)
            and rights.written.isdisjoint(self.adding)
            and all(rights.read.isdisjoint(offsets) for offsets in self.staged.values())
        )
        return not untouched

    def forget_participants(self) -> None:
        """Nothing is open any more: who was in it, and what they have lost since, does not concern the next one."""
        self.connections.clear()
        self.doomed = False
        self.ended += 1


class Transactions:
    """Lives on the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.markers = Markers(broker)
        self._by_name: dict[str, Entry] = {}
        self._by_pid: dict[Pid, Entry] = {}
        self._work: set[asyncio.Task[Any]] = set()
        for stored in transaction_rows.load(broker.store):
            entry = self._add(stored.transaction)
            entry.overruled = stored.overruled
            if entry.transaction.state not in RESTING:
                entry.connections.add(None)
            for group, staged in stored.staged.items():
                # A crash may have come between the deletion of a topic and that of its offsets.
                offsets = {where: offset for where, offset in staged.items() if broker.topics.get(where.topic)}
                entry.staged[group] = offsets
                # With a commit that was decided they are in the store already, or what has replaced them is.
                done = entry.transaction.state is TransactionState.PREPARE_COMMIT
                offsets_to_come = dict.fromkeys(offsets) if done else _without_overruled(entry, group, offsets)
                broker.groups.stage(group, entry.transaction.pid, offsets_to_come)

    def _add(self, transaction: TransactionMetadata) -> Entry:
        entry = self._by_name[transaction.name] = Entry(transaction)
        for pid in (transaction.pid, *transaction.retired):
            self._by_pid[pid] = entry
        return entry

    def _drop(self, entry: Entry) -> None:
        del self._by_name[entry.transaction.name]
        for pid in (entry.transaction.pid, *entry.transaction.retired):
            del self._by_pid[pid]

    def start(self) -> None:
        """Finishes what a crash has left decided but unmarked, and watches over timeouts."""
        for entry in self._by_name.values():
            if entry.transaction.state in DECIDED:
                self._finish_later(entry)
        self._broker.spawn(self._patrol(), "abort transactions that timed out")

    async def close(self) -> None:
        """What is under way stops where it is: to the next start that is a crash like any other."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work whether or not the connection that asked for it lives to see the answer."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._worked)
        return task

    def _worked(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # who asked was told, or is gone

    # -- asking -----------------------------------------------------------------------------------------------

    def get(self, name: str) -> TransactionMetadata | None:
        entry = self._by_name.get(name)
        return entry.transaction if entry is not None else None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return (entry.transaction for entry in self._by_name.values())

    def ended(self, name: str | None) -> int:
        """A number that changes when a transaction of this name comes to its end."""
        return self._by_name[name].ended if name in self._by_name else -1

    def judge_write(
        self, name: str | None, who: Identity, partition: TopicPartition, connection: Connection
    ) -> ErrorCode:
        """May this transactional batch be appended to this partition now?"""
        if name is None:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        entry = self._by_name.get(name)
        if entry is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        error = entry.transaction.judge_write(who, partition)
        if error is ErrorCode.NONE:
            entry.connections.add(connection)
        return error

    def has_named(self, pid: Pid) -> bool:
        """Does this pid belong to a transactional id? If not, `judge_plain_write` has nothing against it."""
        return pid in self._by_pid

    def name_of(self, pid: Pid) -> str | None:
        """The transactional id that the pid belongs to."""
        return self._by_pid[pid].transaction.name if pid in self._by_pid else None

    def judge_plain_write(self, who: Identity, partition: TopicPartition) -> ErrorCode:
        """May this batch, which has a pid but is in no transaction, be appended? A pid that belongs to a name is fenced
        with the name, also in partitions that have not seen its newest epoch yet."""
        entry = self._by_pid.get(who.pid)
        if entry is None:
            return ErrorCode.NONE
        transaction = entry.transaction
        if who != transaction.identity:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        inside = transaction.state is TransactionState.ONGOING and partition in transaction.partitions
        return ErrorCode.INVALID_TXN_STATE if inside else ErrorCode.NONE

    # -- InitProducerId ---------------------------------------------------------------------------------------

    async def init(self, name: str, timeout_ms: Milliseconds, expected: Identity, connection: Connection) -> Identity:
        longest = self._broker.config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise ServerError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction may take 1 to {longest} ms, not {timeout_ms}",
            )
        return await self._to_the_end(self._init(name, timeout_ms, expected, connection))

    async def _init(self, name: str, timeout_ms: Milliseconds, expected: Identity, connection: Connection) -> Identity:
        while True:
            entry = self._by_name.get(name)
            if entry is None:
                created = await self._create(name, timeout_ms, expected, connection)
                if created is not None:
                    return created
                continue
            async with entry.lock:
                if self._by_name.get(name) is not entry:
                    continue  # forgotten, or never stored, while this request waited for its turn
                refuse_severed(connection)
                await self._next_epoch(entry, timeout_ms, expected)
                entry.newest_connection = connection.number
                return entry.transaction.identity

    async def _create(
        self, name: str, timeout_ms: Milliseconds, expected: Identity, connection: Connection
    ) -> Identity | None:
        """The identity of a new name; None if somebody else was quicker."""
        if expected != NOBODY:
            # It names a pid of nobody: forgotten, or of another cluster. As in Kafka, it gets a new one.
            logger.info("transactional id %r is not known; pid %d is replaced", name, expected.pid)
        pid = await self._broker.pids.allocate()
        if name in self._by_name:
            return None
        transaction = TransactionMetadata(name, pid, Epoch(0), timeout_ms, updated_ms=self._broker.clock.now_ms())
        entry = self._add(transaction)
        entry.newest_connection = connection.number
        async with entry.lock:
            try:
                await self._broker.store.execute([transaction_rows.put(transaction, {})])
            except FencepostError:
                self._drop(entry)
                raise
        return transaction.identity

    async def _next_epoch(self, entry: Entry, timeout_ms: Milliseconds, expected: Identity) -> None:
        error = entry.transaction.judge_init(expected)
        if error is not ErrorCode.NONE:
            raise _fenced(error, entry.transaction)
        if entry.transaction.is_repeated_init(expected):
            return
        if entry.transaction.state is TransactionState.ONGOING:
            await self._end(entry, commit=False, fence=True)
            if entry.transaction.state in DECIDED:
                raise _fenced(ErrorCode.CONCURRENT_TRANSACTIONS, entry.transaction)
            if entry.transaction.is_repeated_init(expected):
                return  # it was its own transaction, and the fence has bumped the epoch for it
        await self._take_over(entry, timeout_ms, expected)
        # Who is told the new epoch may read the log next, to see how far the old one came: all that was accepted from
        # the old one must be readable by then.
        await self._broker.syncer.barrier()

    async def _take_over(self, entry: Entry, timeout_ms: Milliseconds, expected: Identity) -> None:
        transaction = entry.transaction
        if transaction.epochs_exhausted:
            new = Identity(await self._broker.pids.allocate(), Epoch(0))
        else:
            new = Identity(transaction.pid, Epoch(transaction.epoch + 1))
        changed = _copy(transaction)
        changed.take_over(new, timeout_ms, self._broker.clock.now_ms(), expected=expected)
        await self._broker.store.execute([transaction_rows.put(changed, {})])
        entry.transaction = changed
        self._by_pid[new.pid] = entry

    # -- joining ----------------------------------------------------------------------------------------------

    def _entry(self, name: str, who: Identity) -> Entry:
        entry = self._by_name.get(name)
        if entry is None:
            raise ServerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {name!r} is not known")
        error = entry.transaction.judge_producer(who)
        if error is not ErrorCode.NONE:
            raise _fenced(error, entry.transaction)
        return entry

    async def add(
        self,
        name: str,
        who: Identity,
        connection: Connection,
        *,
        partitions: set[TopicPartition] | None = None,
        group: str | None = None,
    ) -> None:
        """Adds partitions or a group to the transaction, which begins with it if need be."""
        entry = self._entry(name, who)
        await self._to_the_end(
            self._join(entry, who, connection, partitions or set(), set() if group is None else {group})
        )

    async def _join(
        self, entry: Entry, who: Identity, connection: Connection, partitions: set[TopicPartition], groups: set[str]
    ) -> None:
        async with entry.lock:
            transaction = entry.transaction
            error = transaction.judge_add(who)
            if error is not ErrorCode.NONE:
                raise _fenced(error, transaction)
            refuse_severed(connection)
            for name in partitions:
                topic = self._broker.partition(*name).topic
                check_write(self._broker, connection, topic, name.partition, transaction.name)
            changed = _copy(transaction)
            changes = changed.add(partitions, groups, self._broker.clock.now_ms())
            if changes:
                _refuse_delayed(entry, connection)
            # Said before it is stored: who claims one of these meanwhile has to know what is on its way.
            entry.connections.add(connection)
            if changes:
                await self._store_joined(entry, changed, partitions)

    async def _store_joined(self, entry: Entry, changed: TransactionMetadata, partitions: set[TopicPartition]) -> None:
        entry.adding = partitions
        try:
            await self._broker.store.execute([transaction_rows.put(changed, entry.staged)])
            entry.transaction = changed
        except FencepostError:
            if entry.transaction.state in RESTING:
                entry.forget_participants()
            raise
        finally:
            entry.adding = set()

    async def stage(
        self, name: str, who: Identity, group: str, offsets: Mapping[TopicPartition, Committed], connection: Connection
    ) -> None:
        """Offsets of a group that count if the transaction commits."""
        entry = self._entry(name, who)
        await self._to_the_end(self._stage(entry, who, group, offsets, connection))

    async def _stage(
        self,
        entry: Entry,
        who: Identity,
        group: str,
        offsets: Mapping[TopicPartition, Committed],
        connection: Connection,
    ) -> None:
        async with entry.lock:
            await self._broker.groups.overruling_settled(entry.staged)
            transaction = entry.transaction
            error = transaction.judge_add(who)
            if error is not ErrorCode.NONE:
                raise _fenced(error, transaction)
            if transaction.state is not TransactionState.ONGOING or group not in transaction.groups:
                raise ServerError(ErrorCode.INVALID_TXN_STATE, f"group {group!r} was not added to the transaction")
            refuse_severed(connection)
            for name in offsets:
                check_read(self._broker, connection, self._broker.partition(*name).topic, name.partition)
            before, staged_before = entry.staged.get(group, {}), entry.staged
            # As with partitions, said before it is stored.
            entry.connections.add(connection)
            entry.staged = {**entry.staged, group: {**before, **offsets}}
            # Undecided from now on: nobody may take for stable what is on its way to the store.
            groups = self._broker.groups
            groups.stage(group, transaction.pid, offsets)
            renewed = entry.overruled & {Overruled(group, partition) for partition in offsets}
            entry.overruled -= renewed
            rows = [transaction_rows.put(transaction, entry.staged)]
            rows += [transaction_rows.drop_overruled(transaction.name, each) for each in renewed]
            try:
                await self._broker.store.execute(rows)
            except FencepostError:
                entry.overruled |= renewed
                groups.decide(group, transaction.pid, commit=False)
                groups.stage(group, transaction.pid, _without_overruled(entry, group, before))
                entry.staged = staged_before
                raise

    def rows_to_overrule(self, pid: Pid, group: str, partitions: Iterable[TopicPartition]) -> list[Statement]:
        """What is to be stored together with a commit of the group that came after these were staged."""
        entry = self._by_pid.get(pid)
        if entry is None:
            return []
        name = entry.transaction.name
        return [transaction_rows.put_overruled(name, Overruled(group, partition)) for partition in partitions]

    def overrule(self, pid: Pid, group: str, partitions: Iterable[TopicPartition]) -> None:
        """That commit is stored now."""
        entry = self._by_pid.get(pid)
        if entry is not None:
            entry.overruled |= {Overruled(group, partition) for partition in partitions}

    # -- ending -----------------------------------------------------------------------------------------------

    async def end(self, name: str, who: Identity, connection: Connection, *, commit: bool) -> None:
        """EndTxn; done when the markers are in the logs, or when the disk has refused one and they follow later."""
        entry = self._entry(name, who)
        await self._to_the_end(self._end_by(entry, who, connection, commit=commit))

    async def _end_by(self, entry: Entry, who: Identity, connection: Connection, *, commit: bool) -> None:
        async with entry.lock:
            decision = entry.transaction.judge_end(who, commit=commit)
            if decision.error is not ErrorCode.NONE:
                raise _fenced(decision.error, entry.transaction)
            if decision.proceed:
                refuse_severed(connection)
                _refuse_delayed(entry, connection)
                if commit and entry.doomed:
                    await self._end(entry, commit=False, fence=True)
                    raise _fenced(ErrorCode.PRODUCER_FENCED, entry.transaction)
                await self._end(entry, commit=commit, fence=False)

    async def _end(self, entry: Entry, *, commit: bool, fence: bool) -> None:
        """The five steps. If the decision could not be stored, nothing has happened."""
        before = entry.transaction
        decided = _copy(before)
        decided.prepare(commit=commit, now=self._broker.clock.now_ms(), fence=fence)
        entry.transaction = decided  # step 1: from here on nothing more is accepted for it
        try:
            if commit:
                await self.markers.sync_records(decided)  # step 2
            await self._broker.groups.overruling_settled(entry.staged)
            await self._broker.store.execute(
                [transaction_rows.put(decided, entry.staged), *_offset_rows(entry, commit=commit)]
            )
        except FencepostError:
            entry.transaction = before
            raise
        if not await self._mark_all(entry):
            self._finish_later(entry)

    def _finish_later(self, entry: Entry) -> None:
        self._broker.spawn(self._finish(entry), f"finish transaction {entry.transaction.name}")

    async def _finish(self, entry: Entry) -> None:
        """The decision stands: its markers are tried until they are in the logs."""
        while True:
            with self._broker.health.watch(Chore.MARKERS, entry.transaction.name):
                async with entry.lock:
                    if entry.transaction.state not in DECIDED or await self._mark_all(entry, again=True):
                        return
                raise StorageError("some of its markers cannot be written yet")
            await asyncio.sleep(_PATROL_SECONDS)

    async def _mark_all(self, entry: Entry, *, again: bool = False) -> bool:
        """Steps 4 and 5; False if a marker is missing."""
        transaction = entry.transaction
        if not await self.markers.write_all(transaction, again=again):
            return False
        await self._broker.groups.overruling_settled(entry.staged)
        commit = transaction.state is TransactionState.PREPARE_COMMIT
        for group in entry.staged:
            self._broker.groups.decide(group, transaction.pid, commit=commit)
        rows = [transaction_rows.forget_overruled(transaction.name)] if entry.overruled else []
        entry.staged = {}
        entry.overruled = set()
        entry.forget_participants()
        completed = _copy(transaction)
        completed.complete(self._broker.clock.now_ms())
        entry.transaction = completed
        # Not awaited: if it is lost, the next start looks for missing markers and finds none.
        saved = self._broker.store.execute([transaction_rows.put(completed, {}), *rows])
        saved.add_done_callback(_log_failure)
        return True

    # -- losing what was owned (OWN-9) --------------------------------------------------------------------------

    def leave(self, connection: Connection, lost: Set[Resource]) -> None:
        """The connection does not own these any more: what it has open on them cannot be committed from now on, and
        begins to be aborted."""
        opened = [entry for entry in self._by_name.values() if connection in entry.connections]
        if not opened:
            return  # as a rule; what was lost may be ten thousand names
        rights = rights_of(self._broker, lost)
        for entry in opened:
            if entry.touches(rights):
                entry.doomed = True
                self._begin(self._end_doomed(entry)).add_done_callback(_log_left_open)

    def make_way(self, claimant: Connection, claimed: Set[Resource]) -> list[asyncio.Task[None]]:
        """The claimant owns these from now on: of what others have open on them nothing can be committed any more, and
        when all that is returned is done, it is ended. Where a topic is guarded, others are all but the claimant, known
        or not; elsewhere those who have lost what they owned."""
        opened = [entry for entry in self._by_name.values() if entry.connections]
        if not opened:
            return []
        rights = rights_of(self._broker, claimed)
        guarded = rights_of(self._broker, claimed, guarded_only=True)
        ending: list[asyncio.Task[None]] = []
        for entry in opened:
            if entry.touches(guarded) and entry.connections != {claimant}:
                entry.doomed = True
            if entry.doomed and entry.touches(rights):
                ending.append(self._begin(self._end_doomed(entry)))
        return ending

    async def _end_doomed(self, entry: Entry) -> None:
        async with entry.lock:
            if entry.transaction.state in RESTING:
                entry.forget_participants()  # it never came to anything, or has come to its end
            elif entry.transaction.state in DECIDED:
                await self._mark_all(entry, again=True)
            elif entry.doomed:
                await self._end(entry, commit=False, fence=True)
            if entry.transaction.state in DECIDED:
                raise StorageError(f"the disk refuses the markers of transaction {entry.transaction.name}")

    # -- time -------------------------------------------------------------------------------------------------

    async def _patrol(self) -> None:
        while True:
            await asyncio.sleep(_PATROL_SECONDS)
            with self._broker.health.watch(Chore.TRANSACTIONS):
                self._look_for_late()
            for chore in (Chore.TRANSACTIONS, Chore.MARKERS):
                self._broker.health.keep_only(chore, self._by_name)

    def _look_for_late(self) -> None:
        now = self._broker.clock.now_ms()
        for entry in list(self._by_name.values()):
            if entry.lock.locked():
                continue
            if entry.transaction.has_timed_out(now):
                self._broker.spawn(self._abort_late(entry), f"abort {entry.transaction.name}")
            elif _is_forgettable(entry.transaction, now):
                self._broker.spawn(self._forget(entry), f"forget {entry.transaction.name}")

    async def _abort_late(self, entry: Entry) -> None:
        with self._broker.health.watch(Chore.TRANSACTIONS, entry.transaction.name):
            async with entry.lock:
                transaction = entry.transaction
                if transaction.has_timed_out(self._broker.clock.now_ms()):
                    logger.warning("aborting %s: open for more than %d ms", transaction.name, transaction.timeout_ms)
                    await self._end(entry, commit=False, fence=True)

    async def _forget(self, entry: Entry) -> None:
        with self._broker.health.watch(Chore.TRANSACTIONS, entry.transaction.name):
            async with entry.lock:
                if _is_forgettable(entry.transaction, self._broker.clock.now_ms()):
                    await self._broker.store.execute(transaction_rows.drop(entry.transaction.name))
                    self._drop(entry)


def _copy(transaction: TransactionMetadata) -> TransactionMetadata:
    return replace(transaction, partitions=set(transaction.partitions), groups=set(transaction.groups))


def _is_forgettable(transaction: TransactionMetadata, now: Milliseconds) -> bool:
    return transaction.state in RESTING and now - transaction.updated_ms > _FORGET_AFTER_MS


def _offset_rows(entry: Entry, *, commit: bool) -> list[Statement]:
    if not commit:
        return []
    rows: list[Statement] = []
    for group, offsets in entry.staged.items():
        counting = _without_overruled(entry, group, offsets)
        rows += group_rows.put_offsets(group, {where: offset for where, offset in counting.items() if offset})
    return rows


def _without_overruled(
    entry: Entry, group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed | None]:
    return {where: None if Overruled(group, where) in entry.overruled else offset for where, offset in offsets.items()}


def _refuse_delayed(entry: Entry, connection: Connection) -> None:
    if connection.number < entry.newest_connection:
        raise StaleRequest(
            f"a request that would change the transaction of {entry.transaction.name!r} came over an older "
            "connection than the last one; it may have been delayed"
        )
    entry.newest_connection = connection.number


def _fenced(error: ErrorCode, transaction: TransactionMetadata) -> ServerError:
    return ServerError(error, f"{transaction.name} belongs to pid {transaction.pid}, epoch {transaction.epoch} now")


def _log_left_open(ended: asyncio.Task[None]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        logger.error(
            "a transaction of a former owner is still open; the next claim aborts it, or its timeout: %s", error
        )


def _log_failure(saved: asyncio.Future[None]) -> None:
    if not saved.cancelled() and (error := saved.exception()) is not None:
        logger.warning("the end of a transaction was not noted, which a restart makes good: %s", error)
