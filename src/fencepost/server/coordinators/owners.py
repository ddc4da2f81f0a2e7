"""`own` on the server: connections are owners, tokens are stored, and severing is exact (OWN-9).

A granted claim takes effect at once: the old owner's connection is marked severed. From that moment nothing it has sent
is appended, committed or served, whether it is queued, half received or waiting for a partition to open. The *answer*
to the claimant waits for three things: its tokens are stored; all appends of the old owner are synced and readable;
and open transactions on the resources are aborted. So the new owner reads everything that the old one will ever have
written. If one of the three fails, the claim fails, and nobody owns its resources.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, overload

from fencepost.core.own.lease import is_silent
from fencepost.core.own.ownership import ClaimedResource, Granted, Judgement, OwnedResource, OwnershipTable
from fencepost.errors import ErrorCode, FencepostError, ServerError, StorageError
from fencepost.server.coordinators.takeovers import SILENT, TAKEN_OVER, Takeovers
from fencepost.server.health import Chore
from fencepost.server.net.turns import paced
from fencepost.server.storage.store import Statement
from fencepost.types import Milliseconds, partition_named

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.connection import Connection
    from fencepost.server.storage.partition import Partition

logger = logging.getLogger(__name__)

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS own_tokens (
        own_group TEXT NOT NULL, resource TEXT NOT NULL, token INTEGER NOT NULL, PRIMARY KEY (own_group, resource)
    ) WITHOUT ROWID""",
)
_SAVE_TOKEN: Final = "INSERT OR REPLACE INTO own_tokens (own_group, resource, token) VALUES (?, ?, ?)"  # noqa: S105

LAST_TOKEN: Final = "last_token"  # noqa: S105
"""The row of `meta` that a restored backup has: tokens up to this one may have been given after the backup."""

_PATROL_SECONDS: Final = 0.05
_SECONDS: Final = 0.003
"""Duration of a piece of work, after which others get their turn."""
_MAX_PARTITIONS_PER_PIECE: Final = 32
"""Number of granted partitions that are looked at in one piece."""
MOST_WAITING_RESOURCES: Final = 100_000
"""Resources that waiting claims name, over all claims."""
_NAMES_IN_LOG: Final = 20
"""Maximum number of resources that a line in the log names."""


class _TokenRows(Sequence[Statement]):
    """The statements that store the tokens of a grant. They are made by the store's thread, not on the loop."""

    def __init__(self, group: str, fresh: Sequence[OwnedResource]) -> None:
        self._group = group
        self._fresh = fresh

    def __len__(self) -> int:
        return len(self._fresh)

    @overload
    def __getitem__(self, at: int) -> Statement: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Statement]: ...
    def __getitem__(self, at: int | slice) -> Statement | Sequence[Statement]:
        if isinstance(at, slice):
            return _TokenRows(self._group, self._fresh[at])
        row = self._fresh[at]
        return _SAVE_TOKEN, (self._group, row.name, row.token)


class Owners:
    """The owners and waiting claims of the server. Used only on the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        newest = {
            (group, name): token
            for group, name, token in broker.store.query("SELECT own_group, resource, token FROM own_tokens")
        }
        # Rows are replaced and never removed, so the highest stored token is the highest ever given.
        rows = broker.store.query("SELECT value FROM meta WHERE name = ?", (LAST_TOKEN,))
        highest = max([*newest.values(), int(rows[0][0]) if rows else 0])
        self.table: OwnershipTable[Connection] = OwnershipTable(highest, newest)
        self._answers: dict[Any, asyncio.Future[Judgement[Connection]]] = {}
        """The futures of the waiting claims."""
        self._sessions: dict[Connection, Milliseconds] = {}
        self._patrolling = False
        self.since: dict[tuple[str, str], Milliseconds] = {}
        """When each resource was last granted, for display."""
        self.last: dict[tuple[str, str], tuple[str, str]] = {}
        """Address and client id of the last owner."""
        self.takeovers = Takeovers()

    # -- claiming ---------------------------------------------------------------------------------------------

    async def claim(
        self, connection: Connection, group: str, resources: Sequence[ClaimedResource]
    ) -> Judgement[Connection]:
        judged, durable = self.claim_now(connection, group, resources)
        return await self.when_durable(connection, group, judged, durable)

    def claim_now(
        self, connection: Connection, group: str, resources: Sequence[ClaimedResource]
    ) -> tuple[Judgement[Connection], list[Awaitable[Any]]]:
        """Judge a claim and sever the owners before it, in one piece. Return also what the answer has to wait for; pass
        it to `when_durable` unless it is empty."""
        self._check_known(group, resources)
        judged = self.table.claim(connection, group, resources)
        return judged, self._carry_out(connection, group, judged)

    def _check_known(self, group: str, resources: Sequence[ClaimedResource]) -> None:
        """Raise POLICY_VIOLATION if the server would remember the tokens of more than max_resources."""
        known, most = self.table.known, self._broker.config.max_resources
        if known + len(resources) > most and known + self.table.count_new(group, resources) > most:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"the server remembers {known} resources: reuse their names, or raise the server's max_resources",
            )

    async def wait(
        self, connection: Connection, group: str, resources: Sequence[ClaimedResource], wait_ms: Milliseconds
    ) -> Judgement[Connection] | None:
        """Claim once all resources are free; return None when the time is over."""
        self._check_known(group, resources)
        if self.table.in_line + len(resources) > MOST_WAITING_RESOURCES:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"claims for {self.table.in_line} resources are waiting, and {len(resources)} more are too many: "
                f"claim fewer at once (all claims together: {MOST_WAITING_RESOURCES})",
            )
        waiting = self.table.wait(connection, group, resources)
        answer: asyncio.Future[Judgement[Connection]] = asyncio.get_running_loop().create_future()
        self._answers[waiting] = answer
        self._serve_line()
        try:
            # Not `wait_for`: a grant in the same turn as the timeout counts, because the table already has it.
            await asyncio.wait((answer,), timeout=wait_ms / 1000)
        finally:
            self.table.give_up(waiting)
            self._answers.pop(waiting, None)
        if not answer.done():
            return None
        judged = answer.result()
        if connection.severed:
            return judged  # another claim came between the grant and this turn: nobody reads this answer
        return await self.when_durable(connection, group, judged, self._carry_out(connection, group, judged))

    def _carry_out(self, connection: Connection, group: str, judged: Judgement[Connection]) -> list[Awaitable[Any]]:
        """Sever the old owners, and start what makes the grant durable. Return what is not done yet."""
        if not isinstance(judged, Granted):
            return []
        claimed = {(group, row.name) for row in judged.fresh}
        now = self._broker.clock.now_ms()
        fresh = {row.name: row for row in judged.fresh} if judged.severed else {}
        for owner in judged.severed:
            names = ", ".join(row.name for row in judged.fresh[:_NAMES_IN_LOG])
            logger.warning(
                "severed the owner %s (%s): %s (%s) takes over %.200s in group %s",
                owner.peer, owner.client_id, connection.peer, connection.client_id, names, group,
            )  # fmt: skip
            self._broker.audit.owner_severed(owner, group, judged.fresh, TAKEN_OVER, connection)
            self._broker.counters.takeovers += 1
            lost = [fresh[name] for name in judged.lost[owner]]
            self.takeovers.severed(owner, group, lost, now, by=connection, others=self.table.owned_by(owner))
            self._broker.transactions.leave(owner, claimed)
            owner.sever()
        self.takeovers.granted(group, judged.fresh, connection, now)
        self.since.update(dict.fromkeys(claimed, now))
        self.last.update(dict.fromkeys(claimed, (connection.peer, connection.client_id)))
        durable: list[Awaitable[Any]] = []
        if judged.fresh:
            durable += self._broker.transactions.make_way(connection, claimed)
            # Also if nobody was severed: the previous owner may have disconnected a moment ago.
            durable.append(self._broker.syncer.barrier())
            durable.append(self._broker.store.execute(_TokenRows(group, judged.fresh), at_once=True))
            if len(judged.fresh) > _MAX_PARTITIONS_PER_PIECE or any(self._unread(judged.fresh)):
                # A task, because nobody awaits the rest of a claim whose client leaves at this moment.
                durable.append(asyncio.ensure_future(self._bring_all_to_light(judged)))
        return [each for each in durable if not _is_done(each)]

    async def when_durable(
        self, connection: Connection, group: str, judged: Judgement[Connection], durable: Sequence[Awaitable[Any]]
    ) -> Judgement[Connection]:
        """Wait for what `claim_now` has returned. If it fails, release the resources and raise."""
        if not isinstance(judged, Granted):
            return judged
        try:
            # Shielded: others wait for the same sync, and a claimant that disconnects must not cancel it for them.
            await asyncio.gather(*(asyncio.shield(each) for each in durable))
        except FencepostError:
            # The claimant gets an error, so it must not own the resources.
            self.release(connection, group, [row.name for row in judged.fresh])
            raise
        return judged

    async def _bring_all_to_light(self, judged: Granted[Connection]) -> None:
        """Wait until all records of the granted partitions can be read; look for these in pieces."""
        unread = [partition async for partition in paced(self._unread(judged.fresh)) if partition is not None]
        syncer = self._broker.syncer
        join = syncer.join if len(unread) == 1 else syncer.join_wide
        await asyncio.gather(*(self._bring_to_light(partition, join) for partition in unread))

    def _unread(self, rows: Iterable[OwnedResource]) -> Iterator[Partition | None]:
        """Yield the partition of each row that has records which cannot be read yet, and None for the others."""
        for row in rows:
            partition = self._partition(row.name)
            # A closed partition has nothing that cannot be read: a read opens it, which makes everything visible.
            log = partition.log if partition is not None else None
            yield partition if log is not None and log.high_watermark < log.end_offset else None

    def _partition(self, resource: str) -> Partition | None:
        """Return the partition that the resource names, if there is one."""
        name = partition_named(resource)
        topic = self._broker.topics.get(name.topic) if name is not None else None
        return topic.partition(name.partition) if topic is not None and name is not None else None

    async def _bring_to_light(
        self, partition: Partition, join: Callable[[Sequence[Partition]], asyncio.Future[None]]
    ) -> None:
        """Wait until all appended records of the partition can be read. A barrier alone does not ensure that: it also
        ends when a sync has failed, and the rest becomes visible when the log is reopened."""
        log = partition.log
        if log is not None and log.failed is None:
            await join([partition])
        if partition.topic.deleted or (log is not None and log is partition.log and log.failed is None):
            return
        partition.usable()  # drops a failed log, so that it is reopened
        try:
            log = await partition.open()
        except OSError as error:
            raise StorageError(f"{partition.name} cannot be opened: {error}") from error
        if log.failed is not None:
            raise StorageError(f"after a failed sync the content of {partition.name} is unknown") from log.failed

    def _serve_line(self) -> None:
        """Grant waiting claims whose resources are free, in several turns of the loop if that takes long."""
        began = perf_counter()
        for waiting, judged in self.table.runnable():
            answer = self._answers.get(waiting)
            if answer is not None and not answer.done():
                answer.set_result(judged)
            elif isinstance(judged, Granted):  # it gave up in the same turn
                self.table.release(waiting.claimant, waiting.group, [row.name for row in judged.fresh])
            if perf_counter() - began > _SECONDS:
                asyncio.get_running_loop().call_soon(self._serve_line)
                return

    # -- letting go -------------------------------------------------------------------------------------------

    def release(self, connection: Connection, group: str, names: Sequence[str]) -> list[str]:
        given = self.table.release(connection, group, names)
        if not self.table.owned_by(connection):
            self._sessions.pop(connection, None)
        if given:
            self._broker.transactions.leave(connection, {(group, name) for name in given})
            self._serve_line()
        return given

    def ended(self, connection: Connection) -> None:
        """Remove a connection that is closed, dead or severed: it owns nothing any more."""
        self._sessions.pop(connection, None)
        held = self.table.ended(connection)
        if held:
            # Requests in progress must take no effect either: another connection may own the resources at once.
            connection.severed = True
            self._broker.transactions.leave(connection, set(held))
        self._serve_line()

    # -- sessions ---------------------------------------------------------------------------------------------

    def set_session(self, connection: Connection, session_ms: Milliseconds) -> None:
        """Sever this connection from now on when it is silent for longer than `session_ms`."""
        connection.last_progress = self._broker.clock.monotonic()
        self._sessions[connection] = session_ms
        if not self._patrolling:
            self._patrolling = True
            self._broker.spawn(self._patrol(), "sever silent owners")

    async def _patrol(self) -> None:
        try:
            while self._sessions:
                await asyncio.sleep(_PATROL_SECONDS)
                self._broker.health.each(Chore.OWNERS, list(self._sessions), self._sever_if_silent)
        finally:
            self._patrolling = False

    def _sever_if_silent(self, connection: Connection) -> None:
        session_ms = self._sessions.get(connection)
        if session_ms is None:
            return
        if is_silent(connection.last_progress, session_ms / 1000, self._broker.clock.monotonic()):
            logger.warning(
                "severed the owner %s (%s): silent for more than its session of %d ms",
                connection.peer, connection.client_id, session_ms,
            )  # fmt: skip
            held: dict[str, list[OwnedResource]] = {}
            for group, name in self.table.owned_by(connection):
                found = self.table.ownership(group, name)
                if found is not None:
                    held.setdefault(group, []).append(OwnedResource(name, found.generation, found.token))
            for group, rows in held.items():
                self._broker.audit.owner_severed(connection, group, rows, SILENT, None)
                self.takeovers.severed(connection, group, rows, self._broker.clock.now_ms())
            self._broker.counters.severed_silent += 1
            connection.sever()


def _is_done(work: Awaitable[Any]) -> bool:
    """Tell if nothing is left to wait for, and nothing has failed."""
    return isinstance(work, asyncio.Future) and work.done() and not work.cancelled() and work.exception() is None
