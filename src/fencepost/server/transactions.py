"""The transaction coordinator: `core.transactions` on the loop, the store and the logs.

A transaction ends in five steps, and a crash between any two of them leaves it whole:

    1. nothing more is accepted for it (the state has moved)
    2. with `--sync always`, the records of all its partitions are on the disk
    3. the decision and the offsets that were sent with it are committed to the store, together: no way back
    4. markers go into the logs of its partitions
    5. it is complete

Before step 3 a restart finds it ONGOING: it is still the producer's to end, or it times out and is aborted. After
step 3 a restart finds the decision and writes the markers that are missing. Requests for one transactional id are
worked off one after the other.

Delayed requests. Within one epoch Kafka's older protocol cannot tell a late EndTxn or AddPartitionsToTxn from one
that belongs to the next transaction. A late one has something that gives it away: it comes over a connection that its
client has given up, and the client has since spoken over a newer one. So a request that would begin or end a
transaction is refused on a connection older than the newest that has spoken for this name, by closing it: a living
client comes back with a new connection, a delayed request does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fencepost.core.offsets import Committed
from fencepost.core.transactions import DECIDED, NOBODY, Identity, State, Transaction
from fencepost.errors import ErrorCode, FencepostError, Malformed, ServerError
from fencepost.kernel.control import MarkerType, encode_marker
from fencepost.kernel.header import read_header
from fencepost.server import group_rows, transaction_rows
from fencepost.server.partition import Partition
from fencepost.server.store import Statement
from fencepost.types import Epoch, Milliseconds, Pid, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.connection import Connection

logger = logging.getLogger(__name__)

SCHEMA: Final = transaction_rows.SCHEMA

_PATROL_SECONDS: Final = 0.25
_FORGET_AFTER_MS: Final[Milliseconds] = 7 * 24 * 60 * 60 * 1000
"""An idle transactional id is forgotten after this long (Kafka: transactional.id.expiration.ms)."""


class Entry:
    """A transaction and what the server keeps beside it."""

    __slots__ = ("connections", "lock", "newest_connection", "staged", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.lock = asyncio.Lock()
        self.staged: dict[str, dict[TopicPartition, Committed]] = {}
        self.newest_connection = 0
        self.connections: set[Connection] = set()
        """Who has added something to the open transaction: with them it ends, if they lose what they own (OWN-9)."""


class Transactions:
    """Lives on the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._by_name: dict[str, Entry] = {}
        self._by_pid: dict[Pid, Entry] = {}
        for stored in transaction_rows.load(broker.store):
            entry = self._add(stored.transaction)
            for group, offsets in stored.staged.items():
                entry.staged[group] = dict(offsets)
                broker.groups.stage(group, entry.transaction.pid, offsets)

    def _add(self, transaction: Transaction) -> Entry:
        entry = self._by_name[transaction.name] = Entry(transaction)
        self._by_pid[transaction.pid] = entry
        return entry

    def start(self) -> None:
        """Finishes what a crash has left decided but unmarked, and watches over timeouts."""
        for entry in self._by_name.values():
            if entry.transaction.state in DECIDED:
                self._broker.spawn(self._resume(entry), f"finish transaction {entry.transaction.name}")
        self._broker.spawn(self._patrol(), "abort transactions that timed out")

    async def _resume(self, entry: Entry) -> None:
        async with entry.lock:
            await self._write_markers(entry)

    # -- asking -----------------------------------------------------------------------------------------------

    def get(self, name: str) -> Transaction | None:
        entry = self._by_name.get(name)
        return entry.transaction if entry is not None else None

    def __iter__(self) -> Iterator[Transaction]:
        return (entry.transaction for entry in self._by_name.values())

    def judge_write(self, who: Identity, partition: TopicPartition, *, transactional: bool) -> ErrorCode:
        """May this producer append to this partition now? Asked for every batch that carries a pid."""
        entry = self._by_pid.get(who.pid)
        if entry is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING if transactional else ErrorCode.NONE
        transaction = entry.transaction
        if not transactional:
            if who.epoch != transaction.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            inside = transaction.state is State.ONGOING and partition in transaction.partitions
            return ErrorCode.INVALID_TXN_STATE if inside else ErrorCode.NONE
        return transaction.judge_write(who, partition)

    # -- InitProducerId ---------------------------------------------------------------------------------------

    async def init(self, name: str, timeout_ms: Milliseconds, expected: Identity, connection: Connection) -> Identity:
        if not 0 < timeout_ms <= self._broker.config.transaction_max_timeout_ms:
            raise ServerError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"a transaction may take 1 to {self._broker.config.transaction_max_timeout_ms} ms, not {timeout_ms}",
            )
        entry = self._by_name.get(name)
        if entry is None:
            entry = await self._create(name, timeout_ms, expected)
            if entry is None:
                return await self.init(name, timeout_ms, expected, connection)
            entry.newest_connection = connection.number
            return entry.transaction.identity
        async with entry.lock:
            transaction = entry.transaction
            error = transaction.judge_init(expected)
            if error is not ErrorCode.NONE:
                raise _fenced(error, transaction)
            entry.newest_connection = max(entry.newest_connection, connection.number)
            if transaction.is_repeated_init(expected):
                return transaction.identity
            if transaction.state is State.ONGOING:
                await self._end(entry, commit=False, fence=True)
            await self._take_over(entry, timeout_ms)
            return entry.transaction.identity

    async def _create(self, name: str, timeout_ms: Milliseconds, expected: Identity) -> Entry | None:
        """The entry of a new name; None if somebody else was quicker."""
        if expected != NOBODY:
            # It names a pid of nobody: forgotten, or of another cluster. As in Kafka, it gets a new one.
            logger.info("transactional id %r is not known; pid %d is replaced", name, expected.pid)
        pid = await self._broker.pids.allocate()
        if name in self._by_name:
            return None
        now = self._broker.clock.now_ms()
        transaction = Transaction(name, pid, Epoch(0), timeout_ms, updated_ms=now)
        entry = self._add(transaction)
        async with entry.lock:
            try:
                await self._broker.store.execute([transaction_rows.put(transaction, {})])
            except FencepostError:
                del self._by_name[name], self._by_pid[pid]
                raise
        return entry

    async def _take_over(self, entry: Entry, timeout_ms: Milliseconds) -> None:
        transaction = entry.transaction
        if transaction.epochs_exhausted:
            new = Identity(await self._broker.pids.allocate(), Epoch(0))
        else:
            new = Identity(transaction.pid, Epoch(transaction.epoch + 1))
        changed = replace(transaction, partitions=set(), groups=set())
        changed.take_over(new, timeout_ms, self._broker.clock.now_ms())
        await self._broker.store.execute([transaction_rows.put(changed, {})])
        entry.transaction = changed
        self._by_pid.pop(transaction.pid, None)
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
        async with entry.lock:
            transaction = entry.transaction
            error = transaction.judge_add(who)
            if error is not ErrorCode.NONE:
                raise _fenced(error, transaction)
            if transaction.state is not State.ONGOING:
                _refuse_delayed(entry, connection)
            changed = replace(transaction, partitions=set(transaction.partitions), groups=set(transaction.groups))
            if changed.add(partitions or set(), {group} if group else set(), self._broker.clock.now_ms()):
                await self._broker.store.execute([transaction_rows.put(changed, entry.staged)])
                if entry.transaction is transaction:
                    entry.transaction = changed
            entry.connections.add(connection)
            entry.newest_connection = max(entry.newest_connection, connection.number)

    async def stage(
        self, name: str, who: Identity, group: str, offsets: Mapping[TopicPartition, Committed], connection: Connection
    ) -> None:
        """Offsets of a group that count if the transaction commits."""
        entry = self._entry(name, who)
        async with entry.lock:
            transaction = entry.transaction
            error = transaction.judge_add(who)
            if error is not ErrorCode.NONE:
                raise _fenced(error, transaction)
            if transaction.state is not State.ONGOING or group not in transaction.groups:
                raise ServerError(ErrorCode.INVALID_TXN_STATE, f"group {group!r} was not added to the transaction")
            staged = {known: dict(rows) for known, rows in entry.staged.items()}
            staged.setdefault(group, {}).update(offsets)
            # Undecided from now on, whatever becomes of the store: nobody may read past it.
            self._broker.groups.stage(group, transaction.pid, offsets)
            await self._broker.store.execute([transaction_rows.put(transaction, staged)])
            entry.staged = staged
            entry.connections.add(connection)

    # -- ending -----------------------------------------------------------------------------------------------

    async def end(self, name: str, who: Identity, connection: Connection, *, commit: bool) -> None:
        """EndTxn; done when the markers are in the logs."""
        entry = self._entry(name, who)
        if entry.lock.locked() and entry.transaction.state in DECIDED:
            raise ServerError(entry.transaction.judge_end(who, commit=commit).error)
        async with entry.lock:
            decision = entry.transaction.judge_end(who, commit=commit)
            if decision.error is not ErrorCode.NONE:
                raise _fenced(decision.error, entry.transaction)
            if decision.proceed:
                _refuse_delayed(entry, connection)
                await self._end(entry, commit=commit, fence=False)

    async def abort(self, name: str) -> None:
        """Aborts what is open, by an administrator or because its producer has lost what it owned; fences it."""
        entry = self._by_name.get(name)
        if entry is None:
            raise ServerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"transactional id {name!r} is not known")
        async with entry.lock:
            if entry.transaction.state is State.ONGOING:
                await self._end(entry, commit=False, fence=True)

    async def abort_of(self, connection: Connection, resources: set[str]) -> None:
        """Aborts the open transactions of a severed connection that touch what it owned (OWN-9)."""
        for entry in list(self._by_name.values()):
            touched = {str(partition) for partition in entry.transaction.partitions}
            if connection in entry.connections and touched & resources:
                await self.abort(entry.transaction.name)

    async def _end(self, entry: Entry, *, commit: bool, fence: bool) -> None:
        before, staged = entry.transaction, entry.staged
        decided = replace(before, partitions=set(before.partitions), groups=set(before.groups))
        decided.prepare(commit=commit, now=self._broker.clock.now_ms(), fence=fence)
        entry.transaction = decided  # step 1: from here on nothing more is accepted for it
        try:
            await self._broker.syncer.barrier()
            await self._broker.store.execute(
                [transaction_rows.put(decided, staged), *_offset_rows(staged, commit=commit)]
            )
        except FencepostError:
            entry.transaction = before
            raise
        await self._write_markers(entry)

    async def _write_markers(self, entry: Entry) -> None:
        """Steps 4 and 5. Retried until it succeeds: the decision stands."""
        transaction = entry.transaction
        commit = transaction.state is State.PREPARE_COMMIT
        waiting = set(transaction.partitions)
        while waiting:
            touched: list[Partition] = []
            for partition in sorted(waiting):
                try:
                    found = await self._mark(transaction, partition, commit=commit)
                except (FencepostError, OSError) as error:
                    logger.error("no marker for transaction %s in %s yet: %s", transaction.name, partition, error)
                    continue
                waiting.discard(partition)
                if found is not None:
                    touched.append(found)
            await self._make_durable(touched)
            if waiting:
                await asyncio.sleep(_PATROL_SECONDS)
        for group in entry.staged:
            self._broker.groups.decide(group, transaction.pid, commit=commit)
        entry.staged = {}
        entry.connections.clear()
        completed = replace(transaction, partitions=set(transaction.partitions), groups=set(transaction.groups))
        completed.complete(self._broker.clock.now_ms())
        entry.transaction = completed
        # Not awaited: if it is lost, the next start writes the missing markers, of which there are none.
        saved = self._broker.store.execute([transaction_rows.put(completed, {})])
        saved.add_done_callback(_log_failure)

    async def _mark(self, transaction: Transaction, name: TopicPartition, *, commit: bool) -> Partition | None:
        topic = self._broker.topics.get(name.topic)
        partition = topic.partition(name.partition) if topic is not None else None
        if partition is None:
            return None  # deleted meanwhile
        log = await partition.open()
        known = log.producers.get(transaction.pid)
        if known is not None and known.epoch >= transaction.marker_epoch and known.transaction_start is None:
            return None  # there already: a crash came between the markers and `complete`, or nothing was written
        self._append_marker(partition, transaction.pid, transaction.marker_epoch, commit=commit)
        return partition

    def _append_marker(self, partition: Partition, pid: Pid, epoch: Epoch, *, commit: bool) -> None:
        now = self._broker.clock.now_ms()
        batch = encode_marker(MarkerType.COMMIT if commit else MarkerType.ABORT, pid, epoch, now)
        partition.append_marker(memoryview(batch), read_header(batch), now)

    async def write_marker(self, partition: Partition, pid: Pid, epoch: Epoch, *, commit: bool) -> None:
        """Ends a hanging transaction in one partition, for an administrator."""
        await partition.open()
        self._append_marker(partition, pid, epoch, commit=commit)
        await self._make_durable([partition])

    async def _make_durable(self, touched: list[Partition]) -> None:
        if not touched:
            return
        if self._broker.config.sync == "always":
            await self._broker.syncer.join(touched)
        else:
            for partition in touched:
                if partition.log is not None:
                    partition.advance(partition.log.end_offset)

    # -- time -------------------------------------------------------------------------------------------------

    async def _patrol(self) -> None:
        while True:
            await asyncio.sleep(_PATROL_SECONDS)
            now = self._broker.clock.now_ms()
            for entry in list(self._by_name.values()):
                transaction = entry.transaction
                if transaction.has_timed_out(now) and not entry.lock.locked():
                    logger.warning(
                        "aborting transaction %s: open for more than %d ms", transaction.name, transaction.timeout_ms
                    )
                    self._broker.spawn(self._abort_late(entry), f"abort {transaction.name}")
                elif (
                    transaction.state not in (State.ONGOING, *DECIDED)
                    and now - transaction.updated_ms > _FORGET_AFTER_MS
                ):
                    await self._forget(entry)

    async def _abort_late(self, entry: Entry) -> None:
        async with entry.lock:
            if entry.transaction.has_timed_out(self._broker.clock.now_ms()):
                await self._end(entry, commit=False, fence=True)

    async def _forget(self, entry: Entry) -> None:
        await self._broker.store.execute([transaction_rows.drop(entry.transaction.name)])
        self._by_name.pop(entry.transaction.name, None)
        self._by_pid.pop(entry.transaction.pid, None)


def _offset_rows(staged: Mapping[str, Mapping[TopicPartition, Committed]], *, commit: bool) -> list[Statement]:
    if not commit:
        return []
    return [row for group, offsets in staged.items() for row in group_rows.put_offsets(group, offsets)]


def _refuse_delayed(entry: Entry, connection: Connection) -> None:
    if connection.number < entry.newest_connection:
        raise Malformed(
            f"a request that would begin or end a transaction of {entry.transaction.name!r} came over an older "
            "connection than the last one; it may have been delayed"
        )
    entry.newest_connection = connection.number


def _fenced(error: ErrorCode, transaction: Transaction) -> ServerError:
    return ServerError(error, f"{transaction.name} belongs to pid {transaction.pid}, epoch {transaction.epoch} now")


def _log_failure(saved: asyncio.Future[None]) -> None:
    if not saved.cancelled() and (error := saved.exception()) is not None:
        logger.warning("the end of a transaction was not noted, which a restart makes good: %s", error)
