"""The group coordinator: it applies the rules of `core/groups/`, stores groups and offsets, and watches deadlines.

Handlers call it; a waiting request is a future; one timer serves all groups. Three principles:

- *Memory follows the store.* Offsets and assignments are committed before a client sees them. The store commits changes
  in the order they are passed to it, so memory and disk have the same history.
- *Large groups change in a thread.* An assignment of a hundred thousand partitions takes a second. So what changes such
  a group runs in one thread, under the entry's lock, and the loop only reads it meanwhile.
- *A deadline that moves back needs no action.* Heartbeats postpone deadlines all the time. If the timer then finds
  nothing to do, it asks the group for its next deadline and sleeps again.

A group uses the classic protocol or the new one (KIP-848). It changes its protocol when a member of the new one joins,
and when the last of these has left (`core/groups/migration.py`). An empty group changes it with any member that joins.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from fencepost.core.groups.assignors import PartitionId
from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import (
    Answer,
    Effect,
    GroupRecord,
    GroupSettings,
    GroupState,
    Join,
    JoinResult,
    Leave,
    Save,
    Sync,
    SyncResult,
)
from fencepost.core.groups.kip848 import QUICK_WORK, ConsumerGroup
from fencepost.core.groups.kip848_messages import (
    JOIN_EPOCH,
    ConsumerGroupSettings,
    ExistingTopics,
    Heartbeat,
    HeartbeatResult,
    TopicInfo,
    check_form,
)
from fencepost.core.groups.migration import downgrade, heartbeat_of, upgrade
from fencepost.core.groups.offsets import Committed, OffsetTable
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.server.coordinators import group_rows
from fencepost.server.coordinators.group_memory import (
    GroupEntry,
    GroupMemory,
    size_of_heartbeat,
    size_of_join,
    size_of_members,
    size_of_offsets,
    size_of_sync,
)
from fencepost.server.health import Chore
from fencepost.server.storage.store import Statement
from fencepost.types import Milliseconds, Pid, TopicPartition

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Downgrade: TypeAlias = tuple[Group, list[Effect]]

_EXPIRY_CHECK_SECONDS: Final = 600
"""Kafka: offsets.retention.check.interval.ms"""

_SECONDS_PER_PIECE: Final = 0.003
"""Duration of a piece of work, after which others get their turn."""

_AFTER_A_FAILURE_MS: Final = 1000
"""Time until the retry of a deadline whose work failed."""

_QUICK_BYTES: Final = 64 * 1024
"""Size of a classic group that changes its protocol in a few milliseconds."""

_STORED_STATES: Final = frozenset({GroupState.STABLE, GroupState.EMPTY})
"""The states of a classic group that survive a restart."""


class GroupCoordinator:
    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self._broker = broker
        self._store = broker.store
        self._settings = GroupSettings(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
            max_size=config.group_max_size,
        )
        self.consumer_settings = ConsumerGroupSettings(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            max_size=config.group_max_size,
        )
        self._groups: dict[str, GroupEntry] = {}
        self._memory = GroupMemory(config.group_memory)
        self._topics = ExistingTopics(-1, {})
        self._timers: list[tuple[Milliseconds, int, GroupEntry]] = []
        self._numbers = itertools.count()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at: Milliseconds = 0
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fencepost-groups")
        """Changes large groups, one after the other."""
        self._orphans: list[str] = []
        """Topics with stored offsets that no longer exist."""
        self._load()

    def _load(self) -> None:
        now = self._now()
        for stored in group_rows.load_groups(self._store):
            entry = GroupEntry(stored.group_id, self._restore(stored, now))
            entry.empty_since_ms = stored.empty_since_ms
            self._groups[stored.group_id] = entry
            self._weigh(entry)
        for group_id, offsets in group_rows.load_offsets(self._store).items():
            entry = self._groups.get(group_id) or self._create(group_id)
            entry.offsets.put({partition: of for partition, of in offsets.items() if self._exists(partition.topic)})
            self._weigh(entry)
            # The last server crashed between the deletion of a topic and that of its offsets.
            self._orphans += [partition.topic for partition in offsets if not self._exists(partition.topic)]

    def _restore(self, stored: group_rows.StoredGroup, now: Milliseconds) -> Group | ConsumerGroup:
        if isinstance(stored.record, GroupRecord):
            return Group.restore(stored.group_id, self._settings, _random_id, stored.record, now)
        head, members = stored.record
        return ConsumerGroup.restore(stored.group_id, self.consumer_settings, head, members, now)

    async def start(self) -> None:
        for topic in set(self._orphans):
            await self._store.execute(group_rows.drop_topic(topic))
        for entry in self._groups.values():
            self._arm(entry)
        self._broker.spawn(self._expire_now_and_then(), "expire committed offsets")

    async def close(self) -> None:
        """Answer waiting requests with an error that makes clients look up the coordinator. May be called twice."""
        self._closed = True
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        for entry in self._groups.values():
            if isinstance(entry.group, Group):
                _deliver([effect for effect in entry.group.close() if isinstance(effect, Answer)], None)
        self._thread.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------------------------------ classic groups

    async def join(self, group_id: str, request: Join) -> JoinResult:
        if not group_id:
            return JoinResult(ErrorCode.INVALID_GROUP_ID, request.member_id)
        await self.settled(group_id)
        entry = self._groups.get(group_id)
        name_size = len(group_id) if entry is None else 0
        if not self._memory.has_room(name_size + size_of_join(request, entry.group if entry is not None else None)):
            return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
        if entry is None:
            if request.member_id:
                return JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            if len(self._groups) >= self._broker.config.max_groups:
                return JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED)
            entry = self._create(group_id)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            if not group.is_empty:
                return await self._join_consumer(entry, group, request)
            entry.group = group = Group(group_id, self._settings, _random_id, generation=group.epoch)
        answer: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        self._perform(entry, group.join(self._now(), request, answer))
        del request  # the group keeps what it needs
        self._arm(entry)
        if group.is_unused and not entry.has_offsets:
            self._remove(group_id)
        return await answer

    async def _join_consumer(self, entry: GroupEntry, group: ConsumerGroup, request: Join) -> JoinResult:
        """Let a classic member join a group of the new protocol."""
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{_random_id()}"
        now, topics = self._now(), self._current_topics()
        try:
            asks = heartbeat_of(request, member_id, self._settings, topics)
        except ServerError as refusal:
            return JoinResult(refusal.code, request.member_id)
        if not request.member_id and request.instance_id is None and request.needs_known_id:
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id)
        result = await self._alter(
            entry, group, partial(group.join, now, request, asks, topics), is_quick=group.is_quick(asks, topics)
        )
        return result or JoinResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, request.member_id)

    async def sync(self, group_id: str, request: Sync) -> SyncResult:
        if not group_id:
            return SyncResult(ErrorCode.INVALID_GROUP_ID)
        await self.settled(group_id)
        entry = self._groups.get(group_id)
        if entry is None:
            return SyncResult(ErrorCode.UNKNOWN_MEMBER_ID)
        group = entry.group
        if isinstance(group, ConsumerGroup):
            work = partial(group.sync, self._now(), request)
            synced = await self._alter(entry, group, work, is_quick=group.work <= QUICK_WORK)
            return synced or SyncResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not self._memory.has_room(size_of_sync(request, group)):
            return SyncResult(ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka for a group that is too large to store
        answer: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._perform(entry, group.sync(self._now(), request, answer))
        del request  # the group keeps what it needs
        self._arm(entry)
        return await answer

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        entry = self._groups.get(group_id)
        if entry is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(entry.group, Group):
            return entry.group.heartbeat(self._now(), member_id, generation, instance_id)
        error = entry.group.beat(self._now(), member_id, generation, instance_id)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self._arm_by(entry, entry.group.members[member_id].revoke_deadline)
        return error

    def leave(self, group_id: str, leaving: Sequence[Leave]) -> ErrorCode | list[ErrorCode]:
        """Remove members, in a group that is `settled`. Return one error for the whole request, or one for each."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        entry = self._groups.get(group_id)
        if entry is None:
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        if isinstance(group := entry.group, ConsumerGroup):
            errors, classic = self._changing(group, partial(group.leave, leaving))()
            self._take_over(entry, group, classic)
            return errors
        errors, effects = group.leave(self._now(), leaving)
        self._perform(entry, effects)
        self._arm(entry)
        return errors

    async def settled(self, group_id: str) -> None:
        """Wait until no thread changes this group."""
        while (entry := self._groups.get(group_id)) is not None and entry.lock.locked():
            async with entry.lock:
                pass

    # ------------------------------------------------------------------------------------------ consumer groups

    async def consumer_heartbeat(self, group_id: str, request: Heartbeat) -> HeartbeatResult:
        if not group_id:
            return HeartbeatResult(ErrorCode.INVALID_REQUEST, "GroupId can't be empty")
        if (refused := check_form(request)) is not None:
            return refused
        entry = self._groups.get(group_id)
        name_size = len(group_id) if entry is None else 0
        topics = self._current_topics()
        growth = name_size + size_of_heartbeat(request, entry.group if entry is not None else None, topics)
        if not self._memory.has_room(growth):
            return HeartbeatResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "all groups together use group_memory bytes")
        if entry is None:
            if request.member_epoch != JOIN_EPOCH:
                return HeartbeatResult(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
            if len(self._groups) >= self._broker.config.max_groups:
                return HeartbeatResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "there are already max_groups groups")
            entry = GroupEntry(group_id, ConsumerGroup(group_id, self.consumer_settings))
        is_large = isinstance(entry.group, Group) and entry.group.members.text_size > _QUICK_BYTES
        if is_large or entry.lock.locked():
            return await self._beat_in_thread(entry, request)
        group = self._as_consumer(entry, request)()
        if group is None:
            return _is_classic(group_id, request)
        if not group.is_quick(request, topics):
            self._groups.setdefault(group_id, entry)
            return await self._beat_in_thread(entry, request)
        result, classic = self._changing(group, partial(group.heartbeat, self._now(), request, topics))()
        if result.error is not ErrorCode.NONE and (entry.group is not group or group_id not in self._groups):
            return result  # rejected, so the group keeps its protocol, or is none
        self._groups[group_id] = entry
        self._take_over(entry, group, classic)
        return await self._when_saved(entry, result)

    def _as_consumer(self, entry: GroupEntry, request: Heartbeat) -> Callable[[], ConsumerGroup | None]:
        """Return what makes the group one of the new protocol, for this request; None if that cannot be."""
        group, now, topics = entry.group, self._now(), self._current_topics()
        if isinstance(group, ConsumerGroup):
            return lambda: group
        if request.member_epoch != JOIN_EPOCH:
            return lambda: None
        if group.is_empty:
            # Epochs continue after the last generation, so that no number is ever used twice.
            return lambda: ConsumerGroup(entry.group_id, self.consumer_settings, group.generation, group.generation)
        return partial(upgrade, entry.group_id, group.record(), self.consumer_settings, topics, now)

    async def _beat_in_thread(self, entry: GroupEntry, request: Heartbeat) -> HeartbeatResult:
        """Handle a heartbeat of a large group, after those before it."""
        # A task: when the client leaves, the thread goes on, and must keep the lock.
        return await asyncio.shield(asyncio.ensure_future(self._beat_alone(entry, request)))

    async def _beat_alone(self, entry: GroupEntry, request: Heartbeat) -> HeartbeatResult:
        async with entry.lock:
            if self._groups.get(entry.group_id) is not entry:
                return HeartbeatResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group was deleted meanwhile; retry")
            group = await self._in_thread(self._as_consumer(entry, request))
            if group is None:
                return _is_classic(entry.group_id, request)
            work = partial(group.heartbeat, self._now(), request, self._current_topics())
            result, classic = await self._in_thread(self._changing(group, work))
            if group.is_empty and not group.epoch and not entry.has_offsets:
                self._remove(entry.group_id)  # rejected, and the group was new
                return result
            if result.error is not ErrorCode.NONE and entry.group is not group:
                return result  # rejected, so the group keeps its protocol
            self._take_over(entry, group, classic)
        return await self._when_saved(entry, result)

    async def _alter(
        self, entry: GroupEntry, group: ConsumerGroup, work: Callable[[], T], *, is_quick: bool
    ) -> T | None:
        """Change a group for a classic member of it. None: it is not the same any more, or cannot be stored; retry."""
        if is_quick:
            result, classic = self._changing(group, work, has_joined=True)()
            self._take_over(entry, group, classic)
        else:
            altered = await asyncio.shield(asyncio.ensure_future(self._alter_alone(entry, group, work)))
            if altered is None:
                return None
            (result,) = altered
        return result if await self._is_saved(entry) else None

    async def _alter_alone(self, entry: GroupEntry, group: ConsumerGroup, work: Callable[[], T]) -> tuple[T] | None:
        async with entry.lock:
            if self._groups.get(entry.group_id) is not entry or entry.group is not group:
                return None
            result, classic = await self._in_thread(self._changing(group, work, has_joined=True))
            self._take_over(entry, group, classic)
        return (result,)

    def _changing(
        self, group: ConsumerGroup, work: Callable[[], T], *, has_joined: bool = False
    ) -> Callable[[], tuple[T, _Downgrade | None]]:
        """Return what does the work, here or in the thread: its result, and the classic group if it has become one."""
        topics, now = self._current_topics(), self._now()

        def change() -> tuple[T, _Downgrade | None]:
            result = work()
            if not group.has_become_classic:
                return result, None
            return result, downgrade(group, self._settings, _random_id, topics, now, has_joined=has_joined)

        return change

    def _take_over(self, entry: GroupEntry, group: ConsumerGroup, classic: _Downgrade | None) -> None:
        """Apply what has changed in a group, and its protocol, if that has changed."""
        if classic is not None:
            logger.info("group %s uses the classic protocol: its last member of the new one has left", entry.group_id)
            entry.group, effects = classic
            self._perform(entry, effects)
            self._arm(entry)
            return
        former, entry.group = entry.group, group
        if isinstance(former, Group):
            if not former.is_empty:
                logger.info("group %s uses the new protocol: a member of it has joined", entry.group_id)
            _deliver([each for each in former.close(ErrorCode.REBALANCE_IN_PROGRESS) if isinstance(each, Answer)], None)
        if self._save_consumer(entry, group):
            self._arm(entry)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _when_saved(self, entry: GroupEntry, result: HeartbeatResult) -> HeartbeatResult:
        if await self._is_saved(entry):
            return result
        return HeartbeatResult(ErrorCode.COORDINATOR_NOT_AVAILABLE, "cannot store the group's state; retry")

    async def _is_saved(self, entry: GroupEntry) -> bool:
        refusals, saving = entry.refusals, entry.saving
        if saving is not None and not saving.done():
            # Also if this request changed nothing, because its answer contains earlier changes.
            await asyncio.wait([saving])
        # The answer builds on all changes, also those of other requests, and all of them must be stored.
        return entry.refusals == refusals and not _has_failed(saving)

    def _save_consumer(self, entry: GroupEntry, group: ConsumerGroup) -> bool:
        """Pass changes to the store; return False if there are none."""
        changes = group.take_changes()
        if changes is None:
            return False
        entry.empty_since_ms = self._broker.clock.now_ms() if group.is_empty else None
        entry.saving = self._store.execute(group_rows.put_consumer(entry.group_id, changes, entry.empty_since_ms))

        def settled(saved: asyncio.Future[None]) -> None:
            if _has_failed(saved):
                entry.refusals += 1
                group.put_back(changes)

        entry.saving.add_done_callback(settled)
        return True

    def _current_topics(self) -> ExistingTopics:
        topics, authorizer = self._broker.topics, self._broker.authorizer
        version = topics.version, authorizer.table.version
        if self._topics.version != version:
            known = {topic.name: TopicInfo(topic.topic_id, topic.partition_count) for topic in topics}
            self._topics = ExistingTopics(version, known, authorizer.may_describe if authorizer.enabled else None)
        return self._topics

    # ------------------------------------------------------------------------------------------ offsets

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool = False
    ) -> ErrorCode:
        """Return NONE if this sender may commit, otherwise the error. GROUP_ID_NOT_FOUND: it claims to be a member of a
        group that does not exist."""
        entry = self._groups.get(group_id)
        if entry is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
        if isinstance(entry.group, ConsumerGroup):
            return entry.group.check_commit(member_id, generation)
        now = self._now()
        return entry.group.check_commit(now, member_id, generation, instance_id, transactional=transactional)

    def stale_commits(
        self, group_id: str, member_id: str, generation: int, partitions: Iterable[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return those of the partitions that a sender which `check_commit` allows may not commit."""
        entry = self._groups.get(group_id)
        if entry is None or not isinstance(entry.group, ConsumerGroup) or entry.group.is_at(member_id, generation):
            return frozenset()
        topics = self._broker.topics
        ids = {
            PartitionId(topic.topic_id, each.partition): each
            for each in partitions
            if (topic := topics.get(each.topic)) is not None
        }
        return frozenset(ids[each] for each in entry.group.stale_commits(member_id, generation, ids))

    def check_room(self, group_id: str, offsets: Mapping[TopicPartition, Committed]) -> ErrorCode:
        """Return an error if these offsets would exceed the number of groups or their memory."""
        entry = self._groups.get(group_id)
        if entry is None and len(self._groups) >= self._broker.config.max_groups:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        growth = size_of_offsets(offsets, entry.offsets if entry is not None else OffsetTable())
        growth += len(group_id) if entry is None else 0
        return ErrorCode.NONE if self._memory.has_room(growth) else ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, Committed]) -> asyncio.Future[None]:
        """Store offsets that `check_commit` allowed; they are visible when the future is done."""
        entry = self._groups.get(group_id) or self._create(group_id)
        growth = max(size_of_offsets(offsets, entry.offsets), 0)
        stored = self._overrule(entry, offsets.keys(), offsets)

        def arrived(_: asyncio.Future[None]) -> None:
            entry.committing -= 1
            entry.committing_size -= growth
            self._weigh(entry)

        entry.committing += 1
        entry.committing_size += growth
        self._weigh(entry)
        stored.add_done_callback(arrived)
        return stored

    def _overrule(
        self,
        entry: GroupEntry,
        partitions: Collection[TopicPartition],
        offsets: Mapping[TopicPartition, Committed],
    ) -> asyncio.Future[None]:
        """Store offsets, and overrule what transactions have staged for these partitions so far."""
        rows: Sequence[Statement] = group_rows.put_offsets(entry.group_id, offsets)
        staged = entry.offsets.staged_for(partitions)
        if not staged:
            return self._when_stored(rows, partial(entry.offsets.put, offsets))
        transactions = self._broker.transactions

        def overrule() -> None:
            entry.offsets.put(offsets)
            entry.offsets.overrule(staged)
            for pid, overruled in staged.items():
                transactions.overrule(pid, entry.group_id, overruled)

        for pid, overruled in staged.items():
            rows = [*rows, *transactions.rows_to_overrule(pid, entry.group_id, overruled)]
        stored = self._when_stored(rows, overrule)
        entry.overruling.add(stored)
        stored.add_done_callback(entry.overruling.discard)
        return stored

    async def overruling_settled(self, group_ids: Collection[str]) -> None:
        """Wait until commits that overrule staged offsets are stored or have failed. A transaction waits for this
        before it stages more or ends, because it must know which of its offsets still count."""
        while on_their_way := [
            commit for group_id in group_ids if (entry := self.get(group_id)) for commit in entry.overruling
        ]:
            await asyncio.wait(on_their_way)

    def stage(self, group_id: str, pid: Pid, offsets: Mapping[TopicPartition, Committed | None]) -> None:
        """Keep offsets of an open transaction as undecided. The transaction coordinator stores them."""
        entry = self._groups.get(group_id) or self._create(group_id)
        entry.offsets.stage(pid, offsets)
        self._weigh(entry)

    def decide(self, group_id: str, pid: Pid, *, commit: bool) -> None:
        entry = self._groups.get(group_id)
        if entry is not None:
            entry.offsets.decide(pid, commit=commit)
            self._weigh(entry)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        entry = self._groups.get(group_id)
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            return entry.group.check_fetch(member_id, member_epoch)
        return ErrorCode.NONE

    def offsets(self, group_id: str) -> OffsetTable | None:
        entry = self._groups.get(group_id)
        return entry.offsets if entry is not None else None

    def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> asyncio.Future[None]:
        entry = self._groups[group_id]

        def forget() -> None:
            for partition in partitions:
                entry.offsets.remove(partition)
            self._weigh(entry)

        return self._when_stored(group_rows.drop_offsets(group_id, partitions, None), forget)

    def topic_deleted(self, topic: str) -> None:
        """Delete the offsets of a deleted topic, and overrule those that transactions have staged."""

        def forget() -> None:
            for entry in self._groups.values():
                if gone := [known for known in entry.offsets if known.topic == topic]:
                    for partition in gone:
                        entry.offsets.remove(partition)
                    self._weigh(entry)

        self._when_stored(group_rows.drop_topic(topic), forget)
        for entry in self._groups.values():
            if staged := entry.offsets.staged_of(topic):
                self._overrule(entry, staged, {})

    async def expire_offsets(self) -> None:
        """Delete offsets beyond their retention, and groups without members and offsets."""
        for entry in list(self._groups.values()):
            with self._broker.health.watch(Chore.OFFSETS, entry.group_id):
                await self._expire_offsets(entry)
        for chore in (Chore.OFFSETS, Chore.GROUPS):
            self._broker.health.keep_only(chore, self._groups)

    async def _expire_offsets(self, entry: GroupEntry) -> None:
        expired = entry.offsets.expired(
            self._broker.clock.now_ms(),
            self._broker.config.offsets_retention_ms,
            empty_since_ms=entry.empty_since_ms,
            is_read=entry.reads,
        )
        if expired:
            # Delete only up to this time, because a newer commit may be on its way to the store.
            newest = max(committed.committed_ms for committed in expired.values())
            await self._when_stored(
                group_rows.drop_offsets(entry.group_id, expired, newest), partial(_forget, entry.offsets, expired)
            )
            self._weigh(entry)
        abandoned = entry.group.is_empty and not (isinstance(entry.group, Group) and entry.group.pending)
        if abandoned and not entry.has_offsets and self._groups.get(entry.group_id) is entry:
            await self.delete(entry.group_id)

    async def _expire_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_SECONDS)
            await self.expire_offsets()

    # ------------------------------------------------------------------------------------------ administration

    def __iter__(self) -> Iterator[GroupEntry]:
        return iter(self._groups.values())

    def get(self, group_id: str) -> GroupEntry | None:
        return self._groups.get(group_id)

    @property
    def memory_used(self) -> int:
        return self._memory.used

    async def delete(self, group_id: str) -> ErrorCode:
        entry = self._groups.get(group_id)
        if entry is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        # Otherwise the offsets of an open transaction would be lost, although its commit succeeds.
        if not entry.group.is_empty or entry.offsets.has_undecided or entry.lock.locked():
            return ErrorCode.NON_EMPTY_GROUP
        # Remove it from memory first: a later request creates a new group, which the store sees after this deletion.
        self._remove(group_id)
        if isinstance(entry.group, Group):
            entry.group.state = GroupState.DEAD
        try:
            await self._store.execute(group_rows.drop_group(group_id))
        except StorageError:
            if isinstance(entry.group, Group):
                entry.group.state = GroupState.EMPTY
            self._weigh(self._groups.setdefault(group_id, entry))
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    # ------------------------------------------------------------------------------------------ effects

    def _create(self, group_id: str) -> GroupEntry:
        entry = self._groups[group_id] = GroupEntry(group_id, Group(group_id, self._settings, _random_id))
        return entry

    def _remove(self, group_id: str) -> None:
        del self._groups[group_id]
        self._memory.forget(group_id)

    def _weigh(self, entry: GroupEntry) -> None:
        if self._groups.get(entry.group_id) is entry:
            self._memory.put(entry.group_id, entry.size)

    def _exists(self, topic: str) -> bool:
        return self._broker.topics.get(topic) is not None

    def _perform(self, entry: GroupEntry, effects: Iterable[Effect]) -> None:
        """Store the group if necessary, then answer waiting requests."""
        assert isinstance(entry.group, Group)
        answers: list[Answer] = []
        # If the last change could not be stored, retry it before answers that build on it. During a rebalance no answer
        # does, and its end is stored anyway.
        save = entry.group.state in _STORED_STATES and _has_failed(entry.saving)
        for effect in effects:
            if isinstance(effect, Save):
                save = True
            else:
                answers.append(effect)
        if save:
            entry.empty_since_ms = self._broker.clock.now_ms() if entry.group.is_empty else None
            entry.saving = self._store.execute(
                group_rows.put_classic(entry.group_id, entry.group.record(), entry.empty_since_ms)
            )
        if entry.saving is None or entry.saving.done():
            _deliver(answers, None)
        else:
            entry.saving.add_done_callback(partial(_deliver, answers))

    def _when_stored(self, statements: Sequence[Statement], apply: Callable[[], None]) -> asyncio.Future[None]:
        stored = self._store.execute(statements)

        def settled(done: asyncio.Future[None]) -> None:
            # Reading the exception also marks it as retrieved for asyncio.
            if not done.cancelled() and done.exception() is None:
                apply()

        stored.add_done_callback(settled)
        return stored

    # ------------------------------------------------------------------------------------------ time

    def _now(self) -> Milliseconds:
        return int(self._broker.clock.monotonic() * 1000)

    def _arm(self, entry: GroupEntry) -> None:
        """After a change, let the timer fire no later than the group's next deadline."""
        entry.members_size = size_of_members(entry.group)
        self._weigh(entry)
        self._arm_by(entry, entry.group.next_deadline())

    def _arm_by(self, entry: GroupEntry, at: Milliseconds | None) -> None:
        if at is None or self._closed or (entry.armed is not None and entry.armed <= at):
            return
        self._arm_at(entry, at)

    def _arm_at(self, entry: GroupEntry, at: Milliseconds) -> None:
        entry.armed = at
        heapq.heappush(self._timers, (at, next(self._numbers), entry))
        self._sleep_until(at)

    def _sleep_until(self, at: Milliseconds) -> None:
        if self._wake is not None:
            if self._wake_at <= at:
                return
            self._wake.cancel()
        self._wake_at = at
        delay = max(at - self._now(), 0) / 1000
        self._wake = asyncio.get_running_loop().call_later(delay, self.run_due)

    def run_due(self) -> None:
        """Do the work of all deadlines that have passed; the timer calls it, and tests with their own clock."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        now, began = self._now(), perf_counter()
        while self._timers and self._timers[0][0] <= now:
            at, _, entry = heapq.heappop(self._timers)
            if entry.armed != at or self._groups.get(entry.group_id) is not entry:
                continue  # an earlier deadline has replaced it, or the group was deleted
            entry.armed = None
            if isinstance(entry.group, Group) and entry.lock.locked():
                self._arm_at(entry, now + _AFTER_A_FAILURE_MS)  # a thread makes it one of the new protocol
                continue
            if isinstance(entry.group, ConsumerGroup) and (entry.lock.locked() or entry.group.work > QUICK_WORK):
                self._broker.spawn(self._tick_in_thread(entry, entry.group), "remove members of a large group")
                continue
            failed = True
            with self._broker.health.watch(Chore.GROUPS, entry.group_id):
                self._tick(entry, now)
                failed = False
            if failed:
                self._arm_at(entry, now + _AFTER_A_FAILURE_MS)
            else:
                self._arm(entry)
            if perf_counter() - began > _SECONDS_PER_PIECE:
                break  # thousands of sessions may end at the same moment: others get their turn
        if self._timers:
            self._sleep_until(self._timers[0][0])

    def _tick(self, entry: GroupEntry, now: Milliseconds) -> None:
        if isinstance(entry.group, Group):
            self._perform(entry, entry.group.tick(now))
        else:
            group = entry.group
            self._ticked(entry, group, *self._changing(group, partial(group.tick, now))())

    async def _tick_in_thread(self, entry: GroupEntry, group: ConsumerGroup) -> None:
        async with entry.lock:
            if entry.group is not group or self._groups.get(entry.group_id) is not entry:
                return
            now = self._now()
            at = now + _AFTER_A_FAILURE_MS
            with self._broker.health.watch(Chore.GROUPS, entry.group_id):
                work = self._changing(group, partial(group.tick, now))
                self._ticked(entry, group, *await self._in_thread(work))
                at = now
        if at != now:
            self._arm_at(entry, at)
        else:
            self._arm(entry)

    def _ticked(self, entry: GroupEntry, group: ConsumerGroup, gone: Iterable[str], classic: _Downgrade | None) -> None:
        for member_id in gone:
            logger.info("removed member %s of group %s: its session timed out", member_id, entry.group_id)
        self._take_over(entry, group, classic)


def _is_classic(group_id: str, request: Heartbeat) -> HeartbeatResult:
    # One that was a member, before the group became classic without it, is welcome again: it must only join. Kafka
    # answers GROUP_ID_NOT_FOUND here too, of which clients die.
    known = request.member_epoch > JOIN_EPOCH
    error = ErrorCode.UNKNOWN_MEMBER_ID if known else ErrorCode.GROUP_ID_NOT_FOUND
    return HeartbeatResult(error, f"group {group_id} uses the classic protocol")


def _random_id() -> str:
    return str(uuid.uuid4())


def _forget(offsets: OffsetTable, expired: Mapping[TopicPartition, Committed]) -> None:
    for partition, committed in expired.items():
        offsets.remove(partition, committed)


def _has_failed(saved: asyncio.Future[None] | None) -> bool:
    return saved is not None and saved.done() and not saved.cancelled() and saved.exception() is not None


def _deliver(answers: Iterable[Answer], saved: asyncio.Future[None] | None) -> None:
    """Answer waiting requests, with an error if the change they wait for could not be stored."""
    failed = _has_failed(saved)
    for future, result in answers:
        assert isinstance(future, asyncio.Future)
        if not future.done():  # the connection may be closed
            future.set_result(result._replace(error=ErrorCode.COORDINATOR_NOT_AVAILABLE) if failed else result)
