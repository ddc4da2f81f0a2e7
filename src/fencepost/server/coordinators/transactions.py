"""The transaction coordinator: it applies `core.transactions` to the store and the logs.

A transaction ends in five steps, and a crash between any two of them keeps it atomic:

    1. the state changes, so that the server accepts nothing more for it
    2. with `--sync always`, the records in all its partitions are synced to disk
    3. the decision and its offsets are committed to the store, together: the point of no return
    4. markers are written to the logs of its partitions
    5. it is complete

After a crash before step 3 the transaction is ONGOING: the producer ends it, or it times out and is aborted. After a
crash after step 3 the server finds the decision and writes the missing markers. If the disk fails to write a marker,
the coordinator retries until it is in the log. EndTxn is answered before that, and the start of the next transaction is
rejected with CONCURRENT_TRANSACTIONS.

Requests for one transactional id run one after the other, and to their end even if their connection closes: a decision
must not depend on whether the client still listens.

Delayed requests. Within one epoch, Kafka's older protocol cannot tell a delayed EndTxn or AddPartitionsToTxn from one
for the next transaction. But a delayed request arrives on a connection that its client has abandoned for a newer one.
So if a request would begin, extend or end a transaction on a connection older than the newest one used in this epoch,
the server closes that connection: a live client reconnects, a delayed request does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
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
from fencepost.server.net.turns import paced
from fencepost.server.storage.store import Later, Statement
from fencepost.types import Epoch, Milliseconds, Pid, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection
    from fencepost.server.storage.topics import Topic

logger = logging.getLogger(__name__)

_PATROL_SECONDS: Final = 0.25
_LATE_AT_ONCE: Final = 32
"""Transactions that are aborted or forgotten at a time because of their age."""
_FORGET_AFTER_MS: Final[Milliseconds] = 7 * 24 * 60 * 60 * 1000
"""Idle time after which a transactional id expires (Kafka: transactional.id.expiration.ms)."""

T = TypeVar("T")


class Entry:
    """A transactional id's metadata, and the state that the server keeps in memory only."""

    __slots__ = (
        "adding", "connections", "doomed", "ended", "lock", "newest_connection", "overruled", "staged", "transaction"
    )  # fmt: skip

    def __init__(self, transaction: TransactionMetadata) -> None:
        self.transaction = transaction
        """Replaced as a whole after the store has the new one; only a decision is visible earlier (see `_end`)."""
        self.lock = asyncio.Lock()
        self.adding: set[TopicPartition] = set()
        """Partitions that are being added; the store does not have them yet."""
        self.staged: dict[str, dict[TopicPartition, Committed]] = {}
        self.overruled: set[Overruled] = set()
        """Staged offsets that a later commit of the group has replaced for good."""
        self.newest_connection = 0
        """Number of the newest connection used in the current epoch."""
        self.connections: set[Connection | None] = set()
        """Connections that added or wrote something: the transaction is aborted if one loses what it owns (OWN-9).
        None: an unknown connection from before the server's restart."""
        self.doomed = False
        """A participant has lost ownership of something the transaction touches: it can only be aborted."""
        self.ended = 0
        """Number of transactions that ended since the server started."""

    def touches(self, rights: Rights) -> bool:
        """Tell if it writes to one of the written partitions, or stages offsets of one of the read partitions."""
        untouched = (
            rights.written.isdisjoint(self.transaction.partitions)
            and rights.written.isdisjoint(self.adding)
            and all(rights.read.isdisjoint(offsets) for offsets in self.staged.values())
        )
        return not untouched

    def forget_participants(self) -> None:
        """Reset the participants after the end of a transaction, because they do not concern the next one."""
        self.connections.clear()
        self.doomed = False
        self.ended += 1


class Transactions:
    """The coordinator's transactional ids. Only the loop uses it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.markers = Markers(broker)
        self._late = asyncio.Semaphore(_LATE_AT_ONCE)
        """Held while a transaction is aborted because of its timeout, or forgotten: thousands may be due at the same
        moment, and each takes several steps that others would have to wait for."""
        self._by_name: dict[str, Entry] = {}
        self._by_pid: dict[Pid, Entry] = {}
        self._work: set[asyncio.Task[Any]] = set()
        for stored in transaction_rows.load(broker.store):
            entry = self._add(stored.transaction)
            entry.overruled = stored.overruled
            if entry.transaction.state not in RESTING:
                entry.connections.add(None)
            for group, staged in stored.staged.items():
                # The last server may have crashed between the deletion of a topic and that of its offsets.
                offsets = {where: offset for where, offset in staged.items() if broker.topics.get(where.topic)}
                entry.staged[group] = offsets
                # After a commit decision the store already has these offsets, or later ones that replaced them.
                done = entry.transaction.state is TransactionState.PREPARE_COMMIT
                offsets_to_come = (
                    dict.fromkeys(offsets) if done else _without_overruled(entry.overruled, group, offsets)
                )
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
        """Write the missing markers of decided transactions, and start to watch for timeouts."""
        for entry in self._by_name.values():
            if entry.transaction.state in DECIDED:
                self._finish_later(entry)
        self._broker.spawn(self._patrol(), "abort transactions that timed out")

    async def close(self) -> None:
        """Stop requests in progress where they are; the next start treats them as after a crash."""
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end, even if the connection that asked for it closes."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._worked)
        return task

    def _worked(self, task: asyncio.Task[Any]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the requester got it, or has disconnected

    # -- asking -----------------------------------------------------------------------------------------------

    def get(self, name: str) -> TransactionMetadata | None:
        entry = self._by_name.get(name)
        return entry.transaction if entry is not None else None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[TransactionMetadata]:
        return (entry.transaction for entry in self._by_name.values())

    def ended(self, name: str | None) -> int:
        """Return a number that changes when a transaction of this name ends."""
        return self._by_name[name].ended if name in self._by_name else -1

    def judge_write(
        self, name: str | None, who: Identity, partition: TopicPartition, connection: Connection
    ) -> ErrorCode:
        """Return NONE if this transactional batch may be appended to this partition now, otherwise the error."""
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
        """Tell if this pid belongs to a transactional id. If not, `judge_plain_write` would accept it."""
        return pid in self._by_pid

    def name_of(self, pid: Pid) -> str | None:
        """Return the transactional id that the pid belongs to."""
        return self._by_pid[pid].transaction.name if pid in self._by_pid else None

    def judge_plain_write(self, who: Identity, partition: TopicPartition) -> ErrorCode:
        """Return NONE if this batch with a pid but without a transaction may be appended, otherwise the error. A pid of
        a transactional id is fenced with it, also in partitions that have not seen its newest epoch yet."""
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
                f"the transaction timeout must be from 1 to {longest} ms, not {timeout_ms}",
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
                    continue  # it expired, or could not be stored, while this request waited for the lock
                refuse_severed(connection)
                await self._next_epoch(entry, timeout_ms, expected)
                entry.newest_connection = connection.number
                return entry.transaction.identity

    async def _create(
        self, name: str, timeout_ms: Milliseconds, expected: Identity, connection: Connection
    ) -> Identity | None:
        """Create a transactional id and return its identity, or None if a concurrent request has created it."""
        if expected != NOBODY:
            # The pid expired, or belongs to another cluster. As in Kafka, the producer gets a new one.
            logger.info("unknown transactional id %r: its producer's pid %d is replaced", name, expected.pid)
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
                return  # the transaction was the requester's own, and the fence has bumped its epoch
        await self._take_over(entry, timeout_ms, expected)
        # The new producer may read the log next, to see how far the old one came: everything accepted from the old one
        # must be readable by then.
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
            raise ServerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {name!r} does not exist")
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
        """Add partitions or a group to the transaction, and begin it if necessary."""
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
            # Note it before it is stored: a concurrent claim of one of these partitions must see it.
            entry.connections.add(connection)
            if changes:
                await self._store_joined(entry, changed, partitions)

    async def _store_joined(self, entry: Entry, changed: TransactionMetadata, partitions: set[TopicPartition]) -> None:
        entry.adding = partitions
        try:
            await self._broker.store.execute(_rows(changed, entry.staged))
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
        """Stage offsets of a group, which are committed if the transaction commits."""
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
                raise ServerError(
                    ErrorCode.INVALID_TXN_STATE, f"group {group!r} was not added to the transaction; add it first"
                )
            refuse_severed(connection)
            self._check_read(connection, offsets)
            if (full := self._broker.groups.check_room(group, offsets)) is not ErrorCode.NONE:
                raise ServerError(full, "all groups together use group_memory bytes")
            before, staged_before = entry.staged.get(group, {}), entry.staged
            # As with partitions, note it before it is stored.
            entry.connections.add(connection)
            entry.staged = {**entry.staged, group: {**before, **offsets}}
            # Undecided from now on: no reader may treat these offsets as stable while they are being stored.
            groups = self._broker.groups
            groups.stage(group, transaction.pid, offsets)
            renewed = entry.overruled & {Overruled(group, partition) for partition in offsets}
            entry.overruled -= renewed
            rows = _rows(
                transaction,
                entry.staged,
                lambda: [transaction_rows.drop_overruled(transaction.name, each) for each in renewed],
            )
            try:
                await self._broker.store.execute(rows)
            except FencepostError:
                entry.overruled |= renewed
                groups.decide(group, transaction.pid, commit=False)
                groups.stage(group, transaction.pid, _without_overruled(entry.overruled, group, before))
                entry.staged = staged_before
                raise

    def _check_read(self, connection: Connection, offsets: Iterable[TopicPartition]) -> None:
        """Raise if a topic is gone, or the connection may not read one of the partitions."""
        known: dict[str, Topic | None] = {}
        for name, index in offsets:
            topic = known[name] if name in known else known.setdefault(name, self._broker.topics.get(name))
            if topic is None or index >= topic.partition_count:
                raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {name}-{index} does not exist")
            if topic.reader_group:
                check_read(self._broker, connection, topic, index)

    def rows_to_overrule(self, pid: Pid, group: str, partitions: Iterable[TopicPartition]) -> list[Statement]:
        """Return the rows to store together with a commit of the group that replaces these staged offsets."""
        entry = self._by_pid.get(pid)
        if entry is None:
            return []
        name = entry.transaction.name
        return [transaction_rows.put_overruled(name, Overruled(group, partition)) for partition in partitions]

    def overrule(self, pid: Pid, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Note that such a commit is stored."""
        entry = self._by_pid.get(pid)
        if entry is not None:
            entry.overruled |= {Overruled(group, partition) for partition in partitions}

    # -- ending -----------------------------------------------------------------------------------------------

    async def end(self, name: str, who: Identity, connection: Connection, *, commit: bool) -> None:
        """End a transaction (EndTxn). Return when the markers are in the logs, or when one failed and is retried."""
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
        """Do the five steps. If the decision cannot be stored, nothing has changed."""
        before = entry.transaction
        decided = _copy(before)
        decided.prepare(commit=commit, now=self._broker.clock.now_ms(), fence=fence)
        entry.transaction = decided  # step 1: from here on the server accepts nothing more for it
        try:
            if commit:
                await self.markers.sync_records(decided)  # step 2
            await self._broker.groups.overruling_settled(entry.staged)
            staged, overruled = entry.staged if commit else {}, frozenset(entry.overruled)
            await self._broker.store.execute(_rows(decided, entry.staged, lambda: _offset_rows(staged, overruled)))
        except FencepostError:
            entry.transaction = before
            raise
        if not await self._mark_all(entry):
            self._finish_later(entry)

    def _finish_later(self, entry: Entry) -> None:
        self._broker.spawn(self._finish(entry), f"finish transaction {entry.transaction.name}")

    async def _finish(self, entry: Entry) -> None:
        """Retry the markers of a decided transaction until they are in the logs."""
        while True:
            with self._broker.health.watch(Chore.MARKERS, entry.transaction.name):
                async with entry.lock:
                    if entry.transaction.state not in DECIDED or await self._mark_all(entry, again=True):
                        return
                raise StorageError("cannot write some of its markers yet")
            await asyncio.sleep(_PATROL_SECONDS)

    async def _mark_all(self, entry: Entry, *, again: bool = False) -> bool:
        """Do steps 4 and 5; return False if a marker is missing."""
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
        # Not awaited: if it is lost, the next start looks for missing markers and finds that none is missing.
        saved = self._broker.store.execute([transaction_rows.put(completed, {}), *rows])
        saved.add_done_callback(_log_failure)
        return True

    # -- loss of ownership (OWN-9) ------------------------------------------------------------------------------

    def leave(self, connection: Connection, lost: Set[Resource]) -> None:
        """Doom and abort the connection's open transactions that touch these resources, which it no longer owns. They
        cannot be committed from this moment on."""
        opened = [entry for entry in self._by_name.values() if connection in entry.connections]
        if not opened:
            return  # the usual case; `lost` may be ten thousand resources
        rights = rights_of(self._broker, lost)
        for entry in opened:
            if entry.touches(rights):
                entry.doomed = True
                self._begin(self._end_doomed(entry)).add_done_callback(_log_left_open)

    def make_way(self, claimant: Connection, claimed: Set[Resource]) -> list[asyncio.Task[None]]:
        """Doom and abort other connections' open transactions that touch these resources, which the claimant now owns.
        They cannot be committed from this moment on; the returned tasks are done when they are aborted. In guarded
        topics "others" means all but the claimant, also unknown ones; elsewhere, those that lost ownership."""
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
                entry.forget_participants()  # it never began, or has ended
            elif entry.transaction.state in DECIDED:
                await self._mark_all(entry, again=True)
            elif entry.doomed:
                await self._end(entry, commit=False, fence=True)
            if entry.transaction.state in DECIDED:
                raise StorageError(f"cannot write the markers of transaction {entry.transaction.name}")

    # -- time -------------------------------------------------------------------------------------------------

    async def _patrol(self) -> None:
        while True:
            await asyncio.sleep(_PATROL_SECONDS)
            with self._broker.health.watch(Chore.TRANSACTIONS):
                await self._look_for_late()
            for chore in (Chore.TRANSACTIONS, Chore.MARKERS):
                self._broker.health.keep_only(chore, self._by_name)

    async def _look_for_late(self) -> None:
        now = self._broker.clock.now_ms()
        async for entry in paced(list(self._by_name.values())):
            if entry.lock.locked():
                continue
            if entry.transaction.has_timed_out(now):
                self._broker.spawn(self._abort_late(entry), f"abort {entry.transaction.name}")
            elif _is_forgettable(entry.transaction, now):
                self._broker.spawn(self._forget(entry), f"forget {entry.transaction.name}")

    async def _abort_late(self, entry: Entry) -> None:
        with self._broker.health.watch(Chore.TRANSACTIONS, entry.transaction.name):
            async with entry.lock, self._late:
                transaction = entry.transaction
                if transaction.has_timed_out(self._broker.clock.now_ms()):
                    logger.warning("aborting %s: open for more than %d ms", transaction.name, transaction.timeout_ms)
                    await self._end(entry, commit=False, fence=True)

    async def _forget(self, entry: Entry) -> None:
        with self._broker.health.watch(Chore.TRANSACTIONS, entry.transaction.name):
            async with entry.lock, self._late:
                if _is_forgettable(entry.transaction, self._broker.clock.now_ms()):
                    await self._broker.store.execute(transaction_rows.drop(entry.transaction.name))
                    self._drop(entry)


def _copy(transaction: TransactionMetadata) -> TransactionMetadata:
    return replace(transaction, partitions=set(transaction.partitions), groups=set(transaction.groups))


def _is_forgettable(transaction: TransactionMetadata, now: Milliseconds) -> bool:
    return transaction.state in RESTING and now - transaction.updated_ms > _FORGET_AFTER_MS


def _rows(
    transaction: TransactionMetadata,
    staged: transaction_rows.StagedOffsets,
    more: Callable[[], Sequence[Statement]] = list,
) -> Sequence[Statement]:
    """Return what stores a transaction. If it is large, the store's thread makes the rows, from what it is now."""
    size = len(transaction.partitions) + sum(map(len, staged.values()))
    if size <= group_rows.MAX_ROWS_ON_LOOP:
        return [transaction_rows.put(transaction, staged), *more()]
    snapshot, groups = _copy(transaction), dict(staged)
    return Later(1 + size, lambda: [transaction_rows.put(snapshot, groups), *more()])


def _offset_rows(staged: transaction_rows.StagedOffsets, overruled: Set[Overruled]) -> list[Statement]:
    """Return what stores the offsets of a transaction that commits."""
    rows: list[Statement] = []
    for group, offsets in staged.items():
        counting = _without_overruled(overruled, group, offsets)
        rows += group_rows.put_offsets(group, {where: offset for where, offset in counting.items() if offset})
    return rows


def _without_overruled(
    overruled: Set[Overruled], group: str, offsets: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed | None]:
    return {where: None if Overruled(group, where) in overruled else offset for where, offset in offsets.items()}


def _refuse_delayed(entry: Entry, connection: Connection) -> None:
    if connection.number < entry.newest_connection:
        raise StaleRequest(
            f"a request to change the transaction of {entry.transaction.name!r} arrived on an older connection than "
            "the last one, so it may be a delayed one; reconnect and retry"
        )
    entry.newest_connection = connection.number


def _fenced(error: ErrorCode, transaction: TransactionMetadata) -> ServerError:
    return ServerError(
        error, f"transactional id {transaction.name!r} now has pid {transaction.pid}, epoch {transaction.epoch}"
    )


def _log_left_open(ended: asyncio.Task[None]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        logger.error("cannot abort the transaction of a former owner; the next claim or its timeout will: %s", error)


def _log_failure(saved: asyncio.Future[None]) -> None:
    if not saved.cancelled() and (error := saved.exception()) is not None:
        logger.warning("cannot store the end of a transaction; the next restart will: %s", error)
