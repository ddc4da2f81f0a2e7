"""The group coordinator with a store and a hand-wound clock: when it stores, answers and forgets."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import GroupState, Join, Leave, Sync
from fencepost.core.groups.kip848 import ConsumerGroup
from fencepost.core.groups.kip848_messages import Heartbeat, HeartbeatResult
from fencepost.core.groups.offsets import Committed
from fencepost.core.groups.subscription import Subscription, write_assignment, write_subscription
from fencepost.core.transactions import NOBODY
from fencepost.errors import ErrorCode, StorageError
from fencepost.server.coordinators.groups import GroupCoordinator
from fencepost.server.storage.store import Statement
from fencepost.types import Offset, Pid, TopicPartition
from tests.support.broker_bed import BrokerBed, running

if TYPE_CHECKING:
    from fencepost.server.coordinators.transactions import Transactions
    from fencepost.server.net.connection import Connection

pytestmark = pytest.mark.unit

DAY = 24 * 3600
NONE = ErrorCode.NONE
T0 = TopicPartition("t", 0)


class Bed(BrokerBed):
    @property
    def groups(self) -> GroupCoordinator:
        return self.broker.groups

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.groups.run_due()

    async def commit(self, group: str, offset: int = 1, partition: TopicPartition = T0) -> None:
        assert self.groups.check_commit(group, "", -1, None) is NONE
        committed = Committed(Offset(offset), -1, "", self.clock.now_ms())
        await self.groups.commit(group, {partition: committed})

    def offset(self, group: str, partition: TopicPartition = T0) -> int | None:
        table = self.groups.offsets(group)
        committed = table.get(partition) if table is not None else None
        return committed.offset if committed is not None else None

    async def join(self, group: str, member_id: str = "", instance_id: str | None = None) -> Any:
        request = Join(member_id, 10_000, 60_000, "consumer", (("range", b""),), instance_id, "client")
        return await self.groups.join(group, request)

    async def enter(self, group: str) -> str:
        """Create a stable group with one member, and return the member's id."""
        member_id: str = (await self.join(group)).member_id
        joined = await self.join(group, member_id)
        assert joined.error is NONE
        synced = await self.groups.sync(group, Sync(member_id, joined.generation, assignments=((member_id, b"all"),)))
        assert synced.error is NONE
        return member_id

    async def beat(self, group: str, member_id: str, epoch: int = 0) -> HeartbeatResult:
        request = Heartbeat(
            member_id, epoch, rebalance_timeout_ms=60_000, topic_names=frozenset({"t"}), owned=frozenset()
        )
        return await self.groups.consumer_heartbeat(group, request)

    def state(self, group: str) -> str | None:
        entry = self.groups.get(group)
        return entry.group.state.value if entry is not None else None


@pytest.fixture
def bed(tmp_path: Path) -> AbstractAsyncContextManager[Bed]:
    return running(lambda: Bed(tmp_path), 2)


def failing_store(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(statements: Sequence[Statement]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, StorageError("the disk is full"))
        return future

    monkeypatch.setattr(bed.broker.store, "execute", refuse)


class SlowStore:
    """A store that accepts changes and settles them, in order, only when it is told to."""

    def __init__(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        self._execute = bed.broker.store.execute
        self._waiting: deque[tuple[Sequence[Statement], asyncio.Future[None]]] = deque()
        monkeypatch.setattr(bed.broker.store, "execute", self._take)

    def _take(self, statements: Sequence[Statement]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((statements, future))
        return future

    async def store_next(self) -> None:
        statements, future = self._waiting.popleft()
        await self._execute(statements)
        future.set_result(None)

    async def store_until(self, done: asyncio.Future[Any]) -> None:
        while not done.done():
            if self._waiting:
                await self.store_next()
            await asyncio.sleep(0)

    def refuse_next(self) -> None:
        self._waiting.popleft()[1].set_exception(StorageError("the disk is full"))


async def _pause() -> None:
    """Let all tasks run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestThroughARestart:
    async def test_offsets_are_there_again(self, bed: Bed) -> None:
        await bed.commit("g", 7)
        await bed.restart()
        assert bed.offset("g") == 7
        assert bed.state("g") == "Empty"

    async def test_members_of_a_classic_group_go_on(self, bed: Bed) -> None:
        member_id = await bed.enter("g")
        await bed.restart()
        assert bed.groups.heartbeat("g", member_id, 1, None) is NONE
        assert bed.state("g") == "Stable"
        bed.pass_time(10)
        assert bed.state("g") == "Empty"

    async def test_members_of_a_consumer_group_go_on(self, bed: Bed) -> None:
        joined = await bed.beat("g", "a")
        await bed.restart()
        again = await bed.groups.consumer_heartbeat("g", Heartbeat("a", joined.member_epoch))
        assert (again.error, again.member_epoch, again.assignment) == (NONE, joined.member_epoch, None)
        bed.pass_time(45)
        assert bed.state("g") == "Empty"
        await bed.restart()
        assert bed.state("g") == "Empty"

    async def test_offsets_of_a_topic_that_went_in_the_crash_are_forgotten(self, bed: Bed) -> None:
        await bed.broker.topics.create("gone", 1, {})
        await bed.commit("g", 1, TopicPartition("gone", 0))
        await bed.commit("g", 2)
        topic = bed.broker.topics.get("gone")
        assert topic is not None
        await bed.broker.topics.delete(topic)
        await bed.restart()
        assert bed.offset("g", TopicPartition("gone", 0)) is None
        assert bed.offset("g") == 2
        assert bed.broker.store.query("SELECT topic FROM group_offsets") == [("t",)]

    async def test_a_deleted_group_stays_deleted(self, bed: Bed) -> None:
        member_id = await bed.enter("g")
        await bed.commit("other")
        assert bed.groups.leave("g", [Leave(member_id)]) == [NONE]
        assert await bed.groups.delete("g") is NONE
        await bed.restart()
        assert [entry.group_id for entry in bed.groups] == ["other"]

    async def test_a_group_that_changed_its_protocol_is_what_it_was_last(self, bed: Bed) -> None:
        member_id = await bed.enter("g")
        bed.groups.leave("g", [Leave(member_id)])
        joined = await bed.beat("g", "a")
        assert joined.member_epoch == 3, "epochs go on where the generations stopped"
        await bed.restart()
        entry = bed.groups.get("g")
        assert entry is not None
        assert isinstance(entry.group, ConsumerGroup)
        await bed.groups.consumer_heartbeat("g", Heartbeat("a", -1))
        await bed.enter("g")
        await bed.restart()
        entry = bed.groups.get("g")
        assert entry is not None
        assert isinstance(entry.group, Group)


class TestStoring:
    async def test_readers_see_an_offset_when_it_is_stored_and_not_before(self, bed: Bed) -> None:
        storing = bed.groups.commit("g", {T0: Committed(Offset(1), -1, "", 0)})
        assert bed.offset("g") is None
        await storing
        assert bed.offset("g") == 1

    async def test_commits_of_one_turn_are_seen_in_their_order(self, bed: Bed) -> None:
        await asyncio.gather(*(bed.commit("g", offset) for offset in range(100)))
        assert bed.offset("g") == 99
        await bed.restart()
        assert bed.offset("g") == 99

    async def test_an_assignment_that_cannot_be_stored_is_not_told(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        member_id = (await bed.join("g")).member_id
        joined = await bed.join("g", member_id)
        with monkeypatch.context() as broken:
            failing_store(bed, broken)
            synced = await bed.groups.sync("g", Sync(member_id, joined.generation))
            assert synced.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await bed.groups.sync("g", Sync(member_id, joined.generation))).error is NONE
        await bed.restart()
        assert bed.state("g") == "Stable", "what was told in the end was not stored"

    async def test_a_heartbeat_that_changes_nothing_waits_for_the_change_before_it(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as slow:
            store = SlowStore(bed, slow)
            joining = [asyncio.ensure_future(bed.beat("g", "a")) for _ in range(2)]
            await _pause()
            assert not any(answer.done() for answer in joining), "an assignment was told before it was stored"
            await store.store_next()
            first, second = await asyncio.gather(*joining)
        assert (first.error, second.error) == (NONE, NONE)
        assert first.assignment == second.assignment

    async def test_a_heartbeat_fails_with_an_earlier_change_that_it_builds_on(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as slow:
            store = SlowStore(bed, slow)
            joining = [asyncio.ensure_future(bed.beat("g", member)) for member in ("a", "b")]
            await _pause()
            store.refuse_next()
            await store.store_next()
            answers = await asyncio.gather(*joining)
        assert [answer.error for answer in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
        assert (await bed.beat("g", "b")).error is NONE
        await bed.restart()
        entry = bed.groups.get("g")
        assert entry is not None
        assert isinstance(entry.group, ConsumerGroup)
        assert entry.group.members.keys() == {"a", "b"}

    async def test_a_heartbeat_whose_outcome_cannot_be_stored_is_refused_and_stored_later(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as broken:
            failing_store(bed, broken)
            assert (await bed.beat("g", "a")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await bed.beat("g", "a")).error is NONE
        await bed.restart()
        assert bed.state("g") == "Stable"

    async def test_a_group_changes_its_protocol_although_the_end_of_the_other_one_was_refused(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        member_id = await bed.enter("g")
        with monkeypatch.context() as broken:
            failing_store(bed, broken)
            assert bed.groups.leave("g", [Leave(member_id)]) == [NONE]
            await _pause()
        assert (await bed.beat("g", "a")).error is NONE
        await bed.restart()
        entry = bed.groups.get("g")
        assert entry is not None
        assert isinstance(entry.group, ConsumerGroup)
        assert entry.group.members.keys() == {"a"}

    async def test_a_commit_that_cannot_be_stored_is_not_seen(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as broken:
            failing_store(bed, broken)
            with pytest.raises(StorageError):
                await bed.commit("g", 1)
        assert bed.offset("g") is None

    async def test_a_group_that_cannot_be_deleted_stays(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        await bed.commit("g", 1)
        with monkeypatch.context() as broken:
            failing_store(bed, broken)
            assert await bed.groups.delete("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bed.offset("g") == 1
        assert await bed.groups.delete("g") is NONE

    @pytest.mark.parametrize("commit", [True, False])
    async def test_a_group_is_not_deleted_while_a_transaction_may_commit_offsets_for_it(
        self, bed: Bed, commit: bool
    ) -> None:
        bed.groups.stage("g", Pid(7), {T0: Committed(Offset(2), -1, "", bed.clock.now_ms())})
        assert await bed.groups.delete("g") is ErrorCode.NON_EMPTY_GROUP
        bed.groups.decide("g", Pid(7), commit=commit)
        assert bed.offset("g") == (2 if commit else None)
        assert await bed.groups.delete("g") is NONE

    async def test_a_refused_first_join_leaves_no_group_behind(self, bed: Bed) -> None:
        refused = await bed.groups.join("g", Join("", 1, 1, "consumer", (("range", b""),)))
        assert refused.error is ErrorCode.INVALID_SESSION_TIMEOUT
        assert bed.groups.get("g") is None
        assert (await bed.beat("h", "", 0)).error is ErrorCode.INVALID_REQUEST
        assert bed.groups.get("h") is None


class TestTime:
    async def test_the_timer_throws_silent_members_out(self, bed: Bed) -> None:
        member_id = await bed.enter("g")
        bed.pass_time(9)
        assert bed.groups.heartbeat("g", member_id, 1, None) is NONE
        bed.pass_time(9)
        assert bed.state("g") == "Stable"
        bed.pass_time(1)
        assert bed.state("g") == "Empty"

    async def test_the_timer_ends_a_rebalance_that_takes_too_long(self, bed: Bed) -> None:
        first = await bed.enter("g")
        second = (await bed.join("g")).member_id
        parked = asyncio.ensure_future(bed.join("g", second))
        await asyncio.sleep(0)
        for _ in range(12):
            assert not parked.done()
            bed.groups.heartbeat("g", first, 1, None)
            bed.pass_time(5)
        joined = await parked
        assert (joined.error, joined.leader) == (NONE, second)

    async def test_closing_answers_those_who_are_parked(self, bed: Bed) -> None:
        await bed.enter("g")
        second = (await bed.join("g")).member_id
        parked = asyncio.ensure_future(bed.join("g", second))
        await asyncio.sleep(0)
        await bed.groups.close()
        assert (await parked).error is ErrorCode.NOT_COORDINATOR

    async def test_a_parked_request_whose_connection_is_gone_does_no_harm(self, bed: Bed) -> None:
        first = await bed.enter("g")
        second = (await bed.join("g")).member_id
        parked = asyncio.ensure_future(bed.join("g", second))
        await asyncio.sleep(0)
        parked.cancel()
        await asyncio.gather(parked, return_exceptions=True)
        joined = await bed.join("g", first)
        assert joined.generation == 2
        assert bed.state("g") == GroupState.COMPLETING_REBALANCE


class TestExpiry:
    async def test_offsets_of_a_simple_group_expire_with_their_age(self, bed: Bed) -> None:
        await bed.commit("g", 1)
        bed.clock.advance(4 * DAY)
        await bed.commit("g", 2, TopicPartition("t", 1))
        bed.clock.advance(3 * DAY)
        await bed.groups.expire_offsets()
        assert bed.offset("g") is None
        assert bed.offset("g", TopicPartition("t", 1)) == 2
        bed.clock.advance(4 * DAY)
        await bed.groups.expire_offsets()
        assert bed.groups.get("g") is None
        assert bed.broker.store.query("SELECT * FROM group_offsets") == []

    async def test_the_week_begins_when_the_last_member_leaves_even_across_a_restart(self, bed: Bed) -> None:
        await bed.commit("g", 1)
        member_id = await bed.enter("g")
        bed.clock.advance(6 * DAY)
        bed.groups.leave("g", [Leave(member_id)])
        await bed.restart()
        bed.clock.advance(6 * DAY)
        await bed.groups.expire_offsets()
        assert bed.offset("g") == 1
        bed.clock.advance(1 * DAY)
        await bed.groups.expire_offsets()
        assert bed.groups.get("g") is None

    async def test_a_group_with_members_does_not_expire(self, bed: Bed) -> None:
        await bed.enter("g")
        await bed.beat("h", "a")
        bed.clock.advance(100 * DAY)
        await bed.groups.expire_offsets()
        assert {entry.group_id for entry in bed.groups} == {"g", "h"}

    async def test_an_empty_group_without_offsets_is_cleared_away(self, bed: Bed) -> None:
        member_id = await bed.enter("g")
        bed.groups.leave("g", [Leave(member_id)])
        await bed.groups.expire_offsets()
        assert bed.groups.get("g") is None

    async def test_a_commit_on_its_way_survives_the_expiry_of_the_one_before(self, bed: Bed) -> None:
        await bed.commit("g", 1)
        bed.clock.advance(7 * DAY)
        storing = asyncio.ensure_future(bed.commit("g", 2))
        await asyncio.sleep(0)
        await bed.groups.expire_offsets()
        await storing
        assert bed.offset("g") == 2
        await bed.restart()
        assert bed.offset("g") == 2

    async def test_a_first_commit_on_its_way_keeps_its_group(self, bed: Bed) -> None:
        """Neither an expiry nor a rejected join in the meantime removes the group as one without offsets."""
        storing = asyncio.ensure_future(bed.commit("g", 1))
        await asyncio.sleep(0)
        refused = await bed.groups.join("g", Join("", 1, 1, "consumer", (("range", b""),)))
        assert refused.error is ErrorCode.INVALID_SESSION_TIMEOUT
        await bed.groups.expire_offsets()
        await storing
        assert bed.offset("g") == 1
        await bed.restart()
        assert bed.offset("g") == 1

    async def test_what_a_transaction_has_not_decided_is_kept(self, bed: Bed) -> None:
        await bed.commit("g", 1)
        bed.groups.stage("g", Pid(7), {T0: Committed(Offset(2), -1, "", bed.clock.now_ms())})
        bed.clock.advance(8 * DAY)
        await bed.groups.expire_offsets()
        assert bed.offset("g") == 1


class Client:
    """The part of a connection that a transaction uses."""

    number = 1
    severed = False


class Staging:
    """A transaction with staged offsets of group g and without records."""

    def __init__(self, bed: Bed, name: str = "name") -> None:
        self._bed = bed
        self._name = name
        self._connection = cast("Connection", Client())
        self._who = NOBODY

    @property
    def _transactions(self) -> Transactions:
        return self._bed.broker.transactions

    async def begin(self) -> None:
        self._who = await self._transactions.init(self._name, 60_000, NOBODY, self._connection)
        await self._transactions.add(self._name, self._who, self._connection, group="g")

    async def stage(self, offset: int) -> None:
        committed = Committed(Offset(offset), -1, "", self._bed.clock.now_ms())
        await self._transactions.stage(self._name, self._who, "g", {T0: committed}, self._connection)

    async def commit(self) -> None:
        await self._transactions.end(self._name, self._who, self._connection, commit=True)


async def _holds(bed: Bed, offset: int | None) -> None:
    assert bed.offset("g") == offset
    await bed.restart()
    assert bed.offset("g") == offset, "memory did not follow the store"


async def _commit_slowly(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, beside: Coroutine[Any, Any, None], *, accepted: bool
) -> None:
    """Commit offset 3 without a transaction; the store accepts or rejects it while `beside` runs."""
    with monkeypatch.context() as slow:
        store = SlowStore(bed, slow)
        committing = asyncio.ensure_future(bed.commit("g", 3))
        under_way = asyncio.ensure_future(beside)
        await _pause()
        if not accepted:
            store.refuse_next()
        await store.store_until(under_way)
        await asyncio.wait([committing])
        assert (committing.exception() is None) is accepted


class TestCommitsBesideATransaction:
    async def test_one_that_is_refused_overrules_nothing(self, bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
        transaction = Staging(bed)
        await transaction.begin()
        await transaction.stage(5)
        with monkeypatch.context() as broken:
            failing_store(bed, broken)
            with pytest.raises(StorageError):
                await bed.commit("g", 3)
        await transaction.commit()
        await _holds(bed, 5)

    async def test_one_that_is_stored_overrules_what_was_staged_although_another_was_refused(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        transaction = Staging(bed)
        await transaction.begin()
        await transaction.stage(5)
        with monkeypatch.context() as slow:
            store = SlowStore(bed, slow)
            refused, stored = (asyncio.ensure_future(bed.commit("g", offset)) for offset in (3, 4))
            await _pause()
            store.refuse_next()
            await store.store_until(stored)
            with pytest.raises(StorageError):
                await refused
        await transaction.commit()
        await _holds(bed, 4)

    @pytest.mark.parametrize("accepted", [True, False])
    async def test_the_end_of_the_transaction_waits_for_one_on_its_way(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch, accepted: bool
    ) -> None:
        transaction = Staging(bed)
        await transaction.begin()
        await transaction.stage(5)
        await _commit_slowly(bed, monkeypatch, transaction.commit(), accepted=accepted)
        await _holds(bed, 3 if accepted else 5)

    @pytest.mark.parametrize("accepted", [True, False])
    async def test_what_is_staged_anew_counts_whatever_becomes_of_one_on_its_way(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch, accepted: bool
    ) -> None:
        transaction = Staging(bed)
        await transaction.begin()
        await transaction.stage(5)
        await _commit_slowly(bed, monkeypatch, transaction.stage(6), accepted=accepted)
        await transaction.commit()
        await _holds(bed, 6)

    async def test_what_another_transaction_stages_after_it_counts(
        self, bed: Bed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before, after = Staging(bed, "before"), Staging(bed, "after")
        await before.begin()
        await before.stage(5)
        await after.begin()
        with monkeypatch.context() as slow:
            store = SlowStore(bed, slow)
            committing = asyncio.ensure_future(bed.commit("g", 3))
            staging = asyncio.ensure_future(after.stage(6))
            await _pause()
            await store.store_until(staging)
            await committing
        await before.commit()
        await after.commit()
        await _holds(bed, 6)


async def test_offsets_of_a_deleted_topic_are_forgotten_in_memory_and_on_disk(bed: Bed) -> None:
    on_its_way = asyncio.ensure_future(bed.commit("g", 1))
    await asyncio.sleep(0)
    topic = bed.broker.topics.get("t")
    assert topic is not None
    await bed.broker.delete_topic(topic)
    await on_its_way
    await bed.broker.store.execute([])
    assert bed.offset("g") is None
    assert bed.broker.store.query("SELECT * FROM group_offsets") == []


@pytest.mark.parametrize("crash", [False, True])
async def test_what_was_staged_for_a_deleted_topic_is_not_inherited_by_one_of_its_name(bed: Bed, crash: bool) -> None:
    transaction = Staging(bed)
    await transaction.begin()
    await transaction.stage(5)
    topic = bed.broker.topics.get("t")
    assert topic is not None
    if crash:  # before the offsets are deleted
        await bed.broker.topics.delete(topic)
        await bed.restart()
    else:
        await bed.broker.delete_topic(topic)
    await bed.broker.topics.create("t", 2, {})
    await transaction.commit()
    await _holds(bed, None)


async def test_sessions_that_end_in_the_same_millisecond_are_worked_off_in_pieces(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, pieces = 300, []
    for number in range(groups):
        await bed.enter(f"g{number}")
    ticks = itertools.count()
    monkeypatch.setattr("fencepost.server.coordinators.groups.perf_counter", lambda: next(ticks) / 1000)
    bed.clock.advance(11)
    left = groups
    while left:
        bed.groups.run_due()
        now_left = sum(bed.state(f"g{number}") == "Stable" for number in range(groups))
        pieces.append(left - now_left)
        left = now_left
        await asyncio.sleep(0)
    assert max(pieces) == 4, "as many as take 3 ms, then others have their turn"
    assert sum(pieces) == groups


async def test_the_partitions_that_groups_read_count_before_they_are_assigned(tmp_path: Path) -> None:
    async with running(lambda: Bed(tmp_path, group_memory=300_000), 2) as bed:
        await bed.broker.topics.create("wide", 1_000, {})
        wants = Heartbeat("m", 0, rebalance_timeout_ms=1, topic_names=frozenset({"wide"}), owned=frozenset())
        assert (await bed.groups.consumer_heartbeat("first", wants)).error is NONE
        assert 200_000 < bed.groups.memory_used < 300_000
        refused = await bed.groups.consumer_heartbeat("second", wants)
        assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        second = wants._replace(member_id="n")
        assert (await bed.groups.consumer_heartbeat("first", second)).error is NONE, "the partitions are shared"
        for member in ("m", "n"):
            await bed.groups.consumer_heartbeat("first", Heartbeat(member, -1))
        assert (await bed.groups.consumer_heartbeat("second", wants)).error is NONE


# --- members of both protocols ---

WANTS_T = write_subscription(Subscription(frozenset({"t"})))


async def enter_as_consumer(bed: Bed, group: str) -> str:
    """Let a classic consumer join, and read both partitions of the topic if it is alone."""
    request = Join("", 10_000, 60_000, "consumer", (("range", WANTS_T),), None, "client")
    request = request._replace(member_id=(await bed.groups.join(group, request)).member_id)
    joined = await bed.groups.join(group, request)
    everything = write_assignment(frozenset({T0, TopicPartition("t", 1)}))
    assignments = ((request.member_id, everything),) if joined.leader else ()
    assert (await bed.groups.sync(group, Sync(request.member_id, joined.generation, None, None, None, assignments)))[
        0
    ] is NONE
    return request.member_id


@pytest.fixture(params=["on the loop", "in the thread"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Groups of any size change on the loop, or in the thread for large ones."""
    if request.param == "in the thread":
        monkeypatch.setattr("fencepost.core.groups.kip848.QUICK_WORK", -1)
        monkeypatch.setattr("fencepost.server.coordinators.groups.QUICK_WORK", -1)
        monkeypatch.setattr("fencepost.server.coordinators.groups._QUICK_BYTES", -1)
    return str(request.param)


@pytest.mark.usefixtures("place")
async def test_a_group_with_members_of_both_protocols_survives_a_restart(bed: Bed) -> None:
    member_id = await enter_as_consumer(bed, "g")
    assert (await bed.beat("g", "new")).member_epoch == 2
    for _ in range(2):
        entry = bed.groups.get("g")
        assert entry is not None
        assert isinstance(entry.group, ConsumerGroup)
        assert len(entry.group.members[member_id].assigned) == 2
        await bed.restart()
    assert bed.groups.heartbeat("g", member_id, 1, None) is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await bed.beat("g", "new", -1)).error is NONE
    assert bed.state("g") == "PreparingRebalance"
    await bed.restart()
    assert bed.state("g") == "Stable"
    assert bed.groups.heartbeat("g", member_id, 2, None) is NONE
    assert bed.groups.leave("g", [Leave(member_id)]) == [NONE]


@pytest.mark.usefixtures("place")
async def test_a_group_becomes_classic_when_the_last_session_of_the_new_protocol_ends(bed: Bed) -> None:
    member_id = await enter_as_consumer(bed, "g")
    await bed.beat("g", "new")
    for _ in range(9):
        bed.pass_time(5)
        bed.groups.heartbeat("g", member_id, 1, None)
    await bed.groups.settled("g")
    while bed.state("g") != "PreparingRebalance":
        await asyncio.sleep(0)
    assert bed.groups.heartbeat("g", member_id, 1, None) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await bed.beat("g", "new", 2)
    assert rejoined.error is ErrorCode.UNKNOWN_MEMBER_ID, "it must join again, and may"
    assert (await bed.beat("g", "new")).error is NONE


@pytest.mark.usefixtures("place")
async def test_a_classic_member_that_does_not_join_again_in_time_is_removed(bed: Bed) -> None:
    member_id = await enter_as_consumer(bed, "g")
    joined = await bed.beat("g", "new")
    for _ in range(13):
        bed.groups.heartbeat("g", member_id, 1, None)
        await bed.beat("g", "new", joined.member_epoch)
        bed.pass_time(5)
        await bed.groups.settled("g")
    assert bed.groups.heartbeat("g", member_id, 1, None) is ErrorCode.UNKNOWN_MEMBER_ID
    joined = await bed.beat("g", "new", joined.member_epoch)
    assert len(joined.assignment or ()) == 2
