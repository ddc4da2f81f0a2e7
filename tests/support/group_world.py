"""A group with real rules on both sides and nothing else: members, programs, a coordinator, and a network that loses.

Everything happens at a moment of one simulated clock, in an order that the seed decides. The coordinator is the
server's (`core/groups/kip848.py`, `classic.py`), the members are the reader's (`core/groups/membership.py`); programs,
network and committed offsets are played here. `FAULTS` are mistakes that a client could make, to see that the checks
find them.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fencepost.core.groups.assignors import PartitionId
from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_member import (
    ClassicBeat,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
    CountPartitions,
)
from fencepost.core.groups.classic_messages import (
    Answer,
    Effect,
    GroupSettings,
    Join,
    JoinResult,
    Leave,
    Sync,
)
from fencepost.core.groups.consumer_member import ConsumerAnswer, ConsumerBeat
from fencepost.core.groups.holding import Assigned, MemberSettings, ToRevoke, WereLost
from fencepost.core.groups.kip848 import ConsumerGroup
from fencepost.core.groups.kip848_messages import (
    ConsumerGroupSettings,
    ExistingTopics,
    Heartbeat,
    HeartbeatResult,
    TopicInfo,
)
from fencepost.core.groups.membership import Ask, GroupProtocol, Identity, Membership
from fencepost.core.groups.migration import downgrade, heartbeat_of, upgrade
from fencepost.errors import ErrorCode, TooSlow
from fencepost.types import TopicPartition

FAULTS = (
    "unstable offsets",
    "epoch ignored at commit",
    "revoked handed out",
    "revoke answered early",
    "heartbeat tied to poll",
    "lost partition committed",
    "lease ignored",
)
TOPIC = "t"
TOPIC_ID = UUID(int=7)
SESSION = 10.0
PROCESSING = 20.0
BEAT = 2.0
REQUEST_TIMEOUT = 2.0
TRANSACTION_TIMEOUT = 6.0


class Violation(AssertionError):
    """The promise that was broken."""


@dataclass
class Transaction:
    offsets: dict[TopicPartition, int]
    records: list[tuple[TopicPartition, int]]
    ends_at: float
    decided: bool | None = None
    """Committed or aborted; None: still open. Its offsets stay undecided for a moment more."""


@dataclass(eq=False)
class Player:
    """A process: its membership, and a program that reads, works, and commits."""

    world: World
    name: str
    pace: float
    """Seconds of work for what one poll returns."""
    is_static: bool = False
    lives: int = 0
    membership: Membership = field(init=False)
    is_alive: bool = True
    paused_until: float = 0.0
    is_cut_off: bool = False
    is_healthy: bool = True
    """Was never paused, cut off or too slow, so it has no reason to lose anything."""
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    acquired: dict[TopicPartition, int] = field(default_factory=dict)
    batch: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """What is being worked on: from, to."""
    lookups: dict[TopicPartition, int] = field(default_factory=dict)
    """A position that was asked for before the newest question must not move the program back."""
    is_out: bool = True

    def __post_init__(self) -> None:
        settings = MemberSettings(
            "g",
            frozenset({TOPIC}),
            self.name if self.is_static else None,
            processing_timeout=PROCESSING,
            session=SESSION,
            longest_beat=BEAT,
        )
        self.membership = Membership(settings, f"id-{self.name}", self.world.protocol, fixed=True, patience=1e9)

    # --- the thread that talks with the coordinator ---

    def pump(self) -> None:
        if not self.is_alive or self.world.postponed(self, self.pump):
            return
        if self.world.fault == "heartbeat tied to poll" and self.is_out:
            self.world.after(0.3, self.pump)
            return
        world, membership = self.world, self.membership
        ask = membership.next(world.now)
        if ask is not None:
            world.ask(self, ask)
        world.after(0.25 if ask is None else 0.05, self.pump)

    # --- the program ---

    def poll(self) -> None:
        if not self.is_alive or self.world.postponed(self, self.poll):
            return
        world, membership = self.world, self.membership
        membership.enter(world.now)
        self.is_out = False
        self.attend()

    def attend(self) -> None:
        if not self.is_alive or self.world.postponed(self, self.attend):
            return
        world, holding = self.world, self.membership.holding
        self.membership.enter(world.now)
        if self.membership.too_slow is not None:  # the program hears of it, and asks again
            self.membership.forgive()
        event = holding.take_event()
        match event:
            case WereLost():
                if self.is_healthy and not isinstance(event.cause, TooSlow):
                    raise Violation(f"{self.name} was alive and heard, and lost {sorted(event.partitions)}")
                self._drop(event.partitions, keep=world.fault == "lost partition committed")
            case ToRevoke():
                self.revoke(event)
                return
            case Assigned():
                for partition in sorted(event.partitions):
                    self._look_up(partition)
            case None:
                self.hand_out()
                return
        self.attend()

    def _drop(self, partitions: Any, *, keep: bool) -> None:
        for partition in sorted(partitions):
            if not keep:
                self.positions.pop(partition, None)
            self.batch.pop(partition, None)

    def revoke(self, event: ToRevoke) -> None:
        world, holding = self.world, self.membership.holding
        keep = world.fault == "revoked handed out"
        if world.fault == "revoke answered early":
            holding.released(event)

        def committed(ok: bool) -> None:
            if not ok and holding.term == event.term and world.now < min(holding.revoke_by, holding.lease_end):
                raise Violation(f"{self.name}: a commit in on_revoked was rejected")
            world.after(world.random.choice([0.0, 0.5, 3.0]), end)

        def end() -> None:
            if not self.is_alive or world.postponed(self, end):
                return
            self.membership.enter(world.now)
            if holding.term == event.term and world.now < holding.lease_end:
                for partition in sorted(event.partitions):
                    if world.newest[partition] != self.acquired[partition]:
                        raise Violation(f"{partition} had another holder while on_revoked of {self.name} ran")
            self._drop(event.partitions, keep=keep)
            holding.released(event)
            self.attend()

        offsets = {each: self.positions[each] for each in sorted(event.partitions) if each in self.positions}
        if world.is_transactional or not offsets:
            committed(True)
        else:
            world.commit(self, offsets, committed)

    def _look_up(self, partition: TopicPartition) -> None:
        """Find where to go on, and again while a transaction is undecided."""
        world, term = self.world, self.membership.holding.term
        number = self.lookups[partition] = self.lookups.get(partition, 0) + 1

        def look() -> None:
            if not self.is_alive or world.postponed(self, look):
                return
            holding = self.membership.holding
            if holding.term != term or partition not in holding.owned or self.lookups[partition] != number:
                return
            found = world.committed_offset(partition, stable=world.fault != "unstable offsets")
            if found is None:
                world.after(0.3, look)
            else:
                self.positions[partition] = found

        world.after(world.random.uniform(0.01, 0.2), look)

    def hand_out(self) -> None:
        world, membership = self.world, self.membership
        holding, now = membership.holding, world.now
        self.batch = {}
        for partition, at in self.positions.items():
            allowed = holding.may_hand_out(partition, now)
            if world.fault == "revoked handed out":
                allowed = now < holding.lease_end
            if world.fault == "lease ignored":
                allowed = partition in holding.readable
            if allowed:
                world.handed_out(self, partition)
                self.batch[partition] = at, at + world.random.randint(1, 3)
        if not self.batch:
            world.after(0.2, self.attend)
            return
        for partition, (_, end) in self.batch.items():
            self.positions[partition] = end
        membership.leave_to_program(now)
        self.is_out = True
        pace = self.pace * world.random.uniform(0.2, 1.0)
        world.after(pace, self.finish_in_transaction if world.is_transactional else self.finish)

    def finish(self) -> None:
        if not self.is_alive or self.world.postponed(self, self.finish):
            return
        world = self.world
        holding = self.membership.holding
        ignores = world.fault == "lost partition committed"
        offsets = {each: at for each, at in self.positions.items() if ignores or holding.may_commit(each)}
        world.commit(self, offsets, lambda ok: self.poll())

    def finish_in_transaction(self) -> None:
        """Ask whether this is still a member, then commit records and offsets at once, or abort and rewind."""
        if not self.is_alive or self.world.postponed(self, self.finish_in_transaction):
            return
        world, membership = self.world, self.membership
        asked_at, term, batch = world.now, membership.holding.term, dict(self.batch)
        membership.want_answer(asked_at)
        membership.enter(world.now)  # waiting for the answer is not the program's time

        def check() -> None:
            if not self.is_alive or world.postponed(self, check):
                return
            if membership.holding.term != term or not all(map(membership.holding.may_commit, batch)):
                rewind()
            elif membership.heard_at >= asked_at:
                commit()
            else:
                world.after(0.1, check)

        def commit() -> None:
            offsets = {partition: end for partition, (_, end) in batch.items()}
            records = [(partition, at) for partition, (start, end) in batch.items() for at in range(start, end)]
            transaction = Transaction(offsets, records, world.now + TRANSACTION_TIMEOUT)
            identity = membership.identity

            def staged(ok: bool) -> None:
                if not self.is_alive or world.postponed(self, lambda: staged(ok)):
                    return
                world.end(transaction, commit=ok)
                wait_for_markers()

            def wait_for_markers() -> None:
                """As its producer does: the next transaction begins when this one is over."""
                if transaction in world.pending:
                    world.after(0.05, wait_for_markers)
                elif not self.is_alive or world.postponed(self, wait_for_markers):
                    return
                elif transaction.decided:
                    self.poll()
                else:
                    rewind()

            world.stage(self, transaction, identity, staged)

        def rewind() -> None:
            for partition in batch:
                if partition in membership.holding.owned:
                    self.positions.pop(partition, None)
                    self._look_up(partition)
            self.poll()

        check()


class World:
    def __init__(self, seed: int, fault: str | None = None) -> None:
        self.random = random.Random(seed)
        self.fault = fault
        self.protocol: GroupProtocol = self.random.choice(["consumer", "consumer", "cooperative", "eager"])
        self.is_transactional = self.random.random() < 0.5 or fault == "unstable offsets"
        if fault in ("revoke answered early", "lost partition committed", "epoch ignored at commit"):
            self.is_transactional = False
        self.now = 0.0
        self.partitions = self.random.randint(1, 6)
        self.players: list[Player] = []
        self.handed: dict[TopicPartition, int] = {}
        """The newest holding that has handed out a record."""
        self.newest: dict[TopicPartition, int] = {}
        """The newest holding."""
        self.committed: dict[TopicPartition, int] = {}
        self.pending: list[Transaction] = []
        self.output: dict[TopicPartition, list[int]] = {}
        self.losses = 0.0
        self.count = 0
        self._holdings = itertools.count(1)
        """Numbered as the coordinator gives them out, not as members hear of them."""
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._names = itertools.count(1)
        ids = itertools.count(1)
        self.consumer = ConsumerGroup(
            "g", ConsumerGroupSettings(session_timeout_ms=int(SESSION * 1000), heartbeat_interval_ms=int(BEAT * 1000))
        )
        self.classic = Group("g", GroupSettings(), lambda: f"{next(ids):04}")
        self._parked: dict[Hashable, Callable[[Any], None]] = {}
        self._handles = itertools.count(1)

    # --- time ---

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), what))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            self._tick()
            what()
        self.now = until
        self._tick()

    def postponed(self, player: Player, what: Callable[[], None]) -> bool:
        """Return whether the process is stopped; then `what` happens when it goes on."""
        if player.paused_until > self.now:
            self.after(player.paused_until - self.now, what)
            return True
        return False

    def _tick(self) -> None:
        self.tick()
        for transaction in self.pending:
            if transaction.decided is None and self.now >= transaction.ends_at:
                self.end(transaction, commit=False)

    @property
    def _ms(self) -> int:
        return round(self.now * 1000)

    # --- what happens ---

    def add(self) -> Player:
        player = Player(self, f"m{next(self._names)}", self.random.choice([0.1, 1.0, 12.0]), self.random.random() < 0.2)
        self.players.append(player)
        player.pump()
        player.poll()
        return player

    def add_partition(self) -> None:
        self.partitions += 1

    @property
    def notices_partitions(self) -> bool:
        return self.protocol == "consumer"

    @property
    def topics(self) -> ExistingTopics:
        return ExistingTopics(self.partitions, {TOPIC: TopicInfo(TOPIC_ID, self.partitions)})

    # --- the network ---

    def ask(self, player: Player, ask: Ask) -> None:
        lost = player.is_cut_off or self.random.random() < self.losses
        leaves = self.random.random() < 0.5  # the request arrives, its answer does not
        if lost:
            player.is_healthy = False

        def answer(told: Any) -> None:
            number = next(self._holdings)

            def arrive() -> None:
                if player.is_alive and not self.postponed(player, arrive):
                    before = player.membership.holding.owned
                    player.membership.answered(ask, told, self.now)
                    for partition in player.membership.holding.owned - before:
                        player.acquired[partition] = number
                        self.newest[partition] = max(number, self.newest.get(partition, 0))

            if not lost and not player.is_cut_off:
                self.after(self.random.uniform(0.001, 0.05), arrive)

        def give_up() -> None:
            if player.is_alive and not self.postponed(player, give_up):
                player.membership.unanswered(ask, self.now)

        waits = PROCESSING + 5 if isinstance(ask, ClassicJoin) and not lost else REQUEST_TIMEOUT
        self.after(waits, give_up)
        if not lost or leaves:
            self.after(self.random.uniform(0.001, 0.05), lambda: self._serve(ask, answer))

    def _serve(self, ask: Ask, answer: Callable[[Any], None]) -> None:
        match ask:
            case ConsumerBeat():
                owned = None if ask.owned is None else frozenset(PartitionId(TOPIC_ID, p.partition) for p in ask.owned)
                timeout = -1 if ask.rebalance_timeout is None else int(ask.rebalance_timeout * 1000)
                request = Heartbeat(
                    ask.member_id,
                    ask.epoch,
                    ask.instance_id,
                    rebalance_timeout_ms=timeout,
                    topic_names=ask.topics,
                    owned=owned,
                )
                result = self.beat(request)
                assigned = result.assignment
                named = (
                    None if assigned is None else frozenset(TopicPartition(TOPIC, each.partition) for each in assigned)
                )
                answer(ConsumerAnswer(result.error, result.message, result.member_epoch, BEAT, named))
            case ClassicJoin():
                join = Join(
                    ask.member_id,
                    int(ask.session * 1000),
                    int(ask.rebalance_timeout * 1000),
                    "consumer",
                    ask.protocols,
                    ask.instance_id,
                )
                self._park(lambda handle: self.join(join, handle), answer)
            case ClassicSync():
                sync = Sync(ask.member_id, ask.generation, ask.instance_id, "consumer", ask.protocol, ask.assignments)
                self._park(lambda handle: self.sync(sync, handle), answer)
            case ClassicBeat():
                answer(self.classic_beat(ask))
            case ClassicLeave():
                self.leave(Leave(ask.member_id, ask.instance_id))
                answer(ErrorCode.NONE)
            case CountPartitions():
                answer({TOPIC: self.partitions})

    # --- the coordinator; a world in which groups change their protocol has another ---

    def beat(self, request: Heartbeat) -> HeartbeatResult:
        return self.consumer.heartbeat(self._ms, request, self.topics)

    def join(self, request: Join, handle: int) -> list[Effect]:
        return self.classic.join(self._ms, request, handle)

    def sync(self, request: Sync, handle: int) -> list[Effect]:
        return self.classic.sync(self._ms, request, handle)

    def classic_beat(self, ask: ClassicBeat) -> ErrorCode:
        return self.classic.heartbeat(self._ms, ask.member_id, ask.generation, ask.instance_id)

    def leave(self, who: Leave) -> None:
        _, effects = self.classic.leave(self._ms, [who])
        self._deliver(effects)

    def tick(self) -> None:
        self.consumer.tick(self._ms)
        self._deliver(self.classic.tick(self._ms))

    def check_commit(self, who: Identity, partitions: list[PartitionId], *, transactional: bool) -> ErrorCode:
        if self.protocol == "consumer":
            return _check(self.consumer, who, partitions)
        return self.classic.check_commit(
            self._ms, who.member_id, who.epoch, who.instance_id, transactional=transactional
        )

    def holder(self, partition: TopicPartition) -> str | None:
        """Return the id of the member that holds it, if the coordinator knows."""
        if self.protocol != "consumer":
            return None
        return self.consumer._holders.get(PartitionId(TOPIC_ID, partition.partition), "nobody")

    # --- parked requests ---

    def _park(self, call: Callable[[int], Any], answer: Callable[[Any], None]) -> None:
        handle = next(self._handles)
        self._parked[handle] = answer
        self._deliver(call(handle))

    def _deliver(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self._parked.pop(effect.handle)(effect.result)

    def _check(self, who: Identity, partitions: Iterable[TopicPartition], *, transactional: bool) -> ErrorCode:
        if self.fault == "epoch ignored at commit":
            return ErrorCode.NONE
        held = [PartitionId(TOPIC_ID, each.partition) for each in partitions]
        return self.check_commit(who, held, transactional=transactional)

    def commit(self, player: Player, offsets: dict[TopicPartition, int], then: Callable[[bool], None]) -> None:
        """OffsetCommit, repeated for as long as the member may still be one."""
        membership = player.membership
        term = membership.holding.term
        tries = itertools.count()

        def go() -> None:
            if not player.is_alive or self.postponed(player, go):
                return
            if membership.holding.term != term and self.fault != "lost partition committed":
                then(False)
                return
            who = membership.identity
            self.after(self.random.uniform(0.001, 0.5), lambda: arrive(who))

        def arrive(who: Identity) -> None:
            code = self._check(who, offsets, transactional=False)
            if code is ErrorCode.NONE:
                for partition, offset in offsets.items():
                    self._commit(player, partition, offset)
                then(True)
            elif next(tries) < 60 and code in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.REBALANCE_IN_PROGRESS):
                self.after(0.3, go)  # a newer epoch is on its way to the member
            elif next(tries) < 60 and code is ErrorCode.ILLEGAL_GENERATION and membership.is_member:
                self.after(0.3, go)
            else:
                then(False)

        go()

    def _commit(self, player: Player, partition: TopicPartition, offset: int) -> None:
        self.count += 1
        if self.newest.get(partition) != player.acquired.get(partition):
            raise Violation(f"{player.name} committed {partition}, which another member holds")
        if offset < self.committed.get(partition, 0):
            raise Violation(f"{player.name} rewound {partition} from {self.committed[partition]} to {offset}")
        self.committed[partition] = offset

    def committed_offset(self, partition: TopicPartition, *, stable: bool) -> int | None:
        """OffsetFetch; None: an open transaction may still change it."""
        if stable and any(partition in each.offsets for each in self.pending):
            return None
        return self.committed.get(partition, 0)

    # --- transactions ---

    def stage(self, player: Player, transaction: Transaction, who: Identity, then: Callable[[bool], None]) -> None:
        def arrive() -> None:
            ok = self._check(who, transaction.offsets, transactional=True) is ErrorCode.NONE
            if ok:
                self.pending.append(transaction)
            self.after(self.random.uniform(0.001, 0.5), lambda: then(ok))

        self.after(self.random.uniform(0.001, 0.5), arrive)

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Decide a transaction. Its markers arrive a moment later, and only then its offsets are seen."""
        if transaction.decided is not None:
            return
        transaction.decided = commit
        if transaction not in self.pending:
            return

        def marked() -> None:
            self.pending.remove(transaction)
            if commit:
                for partition, at in transaction.records:
                    self._write(partition, at)
                self.committed.update(transaction.offsets)

        self.after(self.random.choice([0.01, 0.5, 2.0]), marked)

    def _write(self, partition: TopicPartition, at: int) -> None:
        self.count += 1
        written = self.output.setdefault(partition, [])
        if at != len(written):
            raise Violation(f"{partition}: record {at} was processed as number {len(written)}: not exactly once")
        written.append(at)

    # --- promises ---

    def handed_out(self, player: Player, partition: TopicPartition) -> None:
        self.count += 1
        number = player.acquired[partition]
        if number < self.handed.get(partition, 0):
            raise Violation(f"{player.name} handed out {partition} after a later holder did")
        self.handed[partition] = number
        holder = self.holder(partition)
        if holder not in (None, player.membership.identity.member_id):
            raise Violation(f"{player.name} handed out {partition}, which belongs to {holder}")


def _check(group: ConsumerGroup, who: Identity, partitions: list[PartitionId]) -> ErrorCode:
    stale = group.stale_commits(who.member_id, who.epoch, partitions)
    code = group.check_commit(who.member_id, who.epoch)
    return ErrorCode.STALE_MEMBER_EPOCH if stale and code is ErrorCode.NONE else code


class RollingWorld(World):
    """A group whose members use both protocols, and which changes its own with them."""

    def __init__(self, seed: int, fault: str | None = None) -> None:
        super().__init__(seed, fault)
        self.kinds: list[GroupProtocol] = ["consumer", self.random.choice(["cooperative", "eager"])]
        self.group: Group | ConsumerGroup = self.classic
        self.changes = 0
        """How often the group has changed its protocol."""

    def add(self) -> Player:
        self.protocol = self.random.choice(self.kinds)
        return super().add()

    @property
    def notices_partitions(self) -> bool:
        return isinstance(self.group, ConsumerGroup)

    def beat(self, request: Heartbeat) -> HeartbeatResult:
        group = self.group
        if isinstance(group, Group):
            if request.member_epoch:
                return HeartbeatResult(ErrorCode.UNKNOWN_MEMBER_ID)
            upgraded = (
                ConsumerGroup("g", self.consumer.settings, group.generation, group.generation)
                if group.is_empty
                else upgrade("g", group.record(), self.consumer.settings, self.topics, self._ms)
            )
            assert upgraded is not None
            result = upgraded.heartbeat(self._ms, request, self.topics)
            if result.error is ErrorCode.NONE:
                self.group = upgraded
                self.changes += 1
                self._deliver(group.close(ErrorCode.REBALANCE_IN_PROGRESS))
            return result
        result = group.heartbeat(self._ms, request, self.topics)
        self._look_at(group)
        return result

    def join(self, request: Join, handle: int) -> list[Effect]:
        group = self.group
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            member_id = request.member_id or f"new-{handle}"
            if not request.member_id and request.instance_id is None:
                return [Answer(handle, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
            asks = heartbeat_of(request, member_id, self.classic.settings, self.topics)
            result = group.join(self._ms, request, asks, self.topics)
            self._look_at(group, has_joined=True)
            return [Answer(handle, result)]
        if isinstance(group, ConsumerGroup):
            group = self.group = Group("g", self.classic.settings, self.classic.new_id, generation=group.epoch)
        return group.join(self._ms, request, handle)

    def sync(self, request: Sync, handle: int) -> list[Effect]:
        if isinstance(self.group, ConsumerGroup):
            return [Answer(handle, self.group.sync(self._ms, request))]
        return self.group.sync(self._ms, request, handle)

    def classic_beat(self, ask: ClassicBeat) -> ErrorCode:
        if isinstance(self.group, ConsumerGroup):
            return self.group.beat(self._ms, ask.member_id, ask.generation, ask.instance_id)
        return self.group.heartbeat(self._ms, ask.member_id, ask.generation, ask.instance_id)

    def leave(self, who: Leave) -> None:
        if isinstance(self.group, ConsumerGroup):
            self.group.leave([who])
            self._look_at(self.group)
        else:
            _, effects = self.group.leave(self._ms, [who])
            self._deliver(effects)

    def tick(self) -> None:
        if isinstance(self.group, ConsumerGroup):
            self.group.tick(self._ms)
            self._look_at(self.group)
        else:
            self._deliver(self.group.tick(self._ms))

    def _look_at(self, group: ConsumerGroup, *, has_joined: bool = False) -> None:
        if group.has_become_classic:
            self.changes += 1
            self.group, effects = downgrade(
                group, self.classic.settings, self.classic.new_id, self.topics, self._ms, has_joined=has_joined
            )
            self._deliver(effects)
        group.take_changes()

    def check_commit(self, who: Identity, partitions: list[PartitionId], *, transactional: bool) -> ErrorCode:
        if isinstance(self.group, ConsumerGroup):
            return _check(self.group, who, partitions)
        return self.group.check_commit(self._ms, who.member_id, who.epoch, who.instance_id, transactional=transactional)

    def holder(self, partition: TopicPartition) -> str | None:
        if not isinstance(self.group, ConsumerGroup):
            return None
        return self.group._holders.get(PartitionId(TOPIC_ID, partition.partition), "nobody")


def live(seed: int, fault: str | None = None, steps: int = 40, kind: type[World] = World) -> World:
    """Play one random life of a group, then let everything heal. Raise Violation if a promise is broken."""
    world = kind(seed, fault)
    choose = world.random
    if choose.random() < 0.5:
        world.losses = choose.choice([0.02, 0.2])
    for _ in range(choose.randint(1, 3)):
        world.add()
    for _ in range(steps):
        world.run(choose.choice([0.3, 2.0, 7.0]))
        alive = [player for player in world.players if player.is_alive]
        match choose.choice(["join", "die", "leave", "pause", "cut", "mend", "partition", "slow", "calm", "calm"]):
            case "join" if len(alive) < 5:
                world.add()
            case "die" if len(alive) > 1:
                choose.choice(alive).is_alive = False
            case "leave" if len(alive) > 1:
                _leave(world, choose.choice(alive))
            case "pause" if alive:
                stopped = choose.choice(alive)
                stopped.paused_until = world.now + choose.choice([1.0, 8.0, 15.0, 40.0])
                stopped.is_healthy = False
            case "cut" if alive:
                cut = choose.choice(alive)
                cut.is_cut_off, cut.is_healthy = True, False
            case "mend":
                for player in alive:
                    player.is_cut_off = False
            case "partition" if world.partitions < 9:
                world.add_partition()
            case "slow" if alive:
                slow = choose.choice(alive)
                slow.pace, slow.is_healthy = 60.0, False
    _heal(world)
    return world


def _leave(world: World, player: Player) -> None:
    ask = player.membership.leaving(world.now)
    player.is_alive = False
    if ask is not None and not player.is_cut_off:
        world._serve(ask, lambda told: None)


def _heal(world: World) -> None:
    """All that goes wrong ends: every partition is read again."""
    world.losses = 0.0
    if not any(player.is_alive for player in world.players):
        world.add()
    for player in world.players:
        player.is_cut_off, player.paused_until, player.pace = False, 0.0, 0.2
    world.run(200.0)
    world.handed.clear()
    for player in world.players:
        for partition in player.membership.holding.owned if player.is_alive else ():
            world.handed.setdefault(partition, 0)
    world.handed = dict.fromkeys(world.handed, 0)
    world.run(30.0)
    wanted = {TopicPartition(TOPIC, index) for index in range(world.partitions)}
    read = {partition for partition, number in world.handed.items() if number}
    if not world.notices_partitions:
        wanted = {each for each in wanted if each in read or each.partition == 0}  # nobody tells classic members
    if read != wanted:
        raise Violation(f"nobody reads {sorted(wanted - read)}")
