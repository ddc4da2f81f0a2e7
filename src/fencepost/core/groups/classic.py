"""A consumer group of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

The coordinator's side, without sockets or clock. A request comes with the time and an opaque handle. It returns
effects: the answers to parked requests, and whether the group's metadata must be stored first
(`classic_messages.py`). `next_deadline` says when to call `tick`, which handles timeouts.

Theory of operation. A group moves in a circle:

    Empty ──join──▶ PreparingRebalance ──all rejoined──▶ CompletingRebalance ──leader's SyncGroup──▶ Stable
      ▲                   ▲    │                               │                                     │
      └──no member left───┼────┘◀── join, leave, expiry ───────┴─────────────────────────────────────┘

In PreparingRebalance every JoinGroup is parked until all known members have rejoined, or the rebalance timeout removes
those that have not. Then the generation rises, every JoinGroup is answered, and the leader gets the list of members. In
CompletingRebalance every SyncGroup is parked until the leader's arrives with the assignment. A member with a parked
request cannot send heartbeats (its connection waits), so its session does not expire meanwhile.

Two kinds of members need care. A dynamic member first joins without an id and is given one (KIP-394). Until it rejoins
with that id it is *pending*, and delays the rebalance by at most a session timeout. A static member (KIP-345) has an
`instance_id`. When it returns with a new member id, it takes over its old place and assignment without a rebalance, and
the old member id is fenced.

Cooperative rebalances (KIP-429) need nothing here: the clients' assignors perform them as two rebalances.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fencepost.core.groups.classic_messages import (
    CONSUMER,
    Answer,
    Effect,
    GroupRecord,
    GroupSettings,
    GroupState,
    Handle,
    Join,
    JoinedMember,
    JoinResult,
    Leave,
    Member,
    Roster,
    Save,
    Sync,
    SyncResult,
)
from fencepost.core.groups.subscription import topics_of_subscription
from fencepost.errors import ErrorCode
from fencepost.types import Milliseconds

MOST_PROTOCOLS: Final = 100
"""Protocols that a member may offer; clients have a handful of assignors."""


@dataclass(slots=True)
class Group:
    """One group. Every public method that may answer parked requests returns its effects."""

    group_id: str
    settings: GroupSettings
    new_id: Callable[[], str]
    """Returns the random part of a new member id: core has no randomness of its own."""
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    """None for a *simple* group, which only has offsets and was never joined."""
    protocol: str | None = None
    leader: str | None = None
    members: Roster = field(default_factory=Roster)
    pending: dict[str, Milliseconds] = field(default_factory=dict)
    """Member ids given out but not used yet, with their expiry."""
    statics: dict[str, str] = field(default_factory=dict)
    """instance id → member id."""
    _initial: bool = False
    """This rebalance started from Empty: it waits for the initial delay, not for members."""
    _initial_left_ms: Milliseconds = 0
    _joined_in_delay: bool = False
    _join_deadline: Milliseconds | None = None
    _sync_deadline: Milliseconds | None = None
    _unsynced: set[str] = field(default_factory=set)
    """Members whose JoinGroup was answered in this generation and whose SyncGroup is still missing."""
    _behind: dict[str, int] = field(default_factory=dict)
    """Until the next generation: members that came from the other protocol with an earlier number than the group's."""
    _soonest: Milliseconds | None = None
    """No deadline is earlier; None: as far as known there is none."""
    _effects: list[Effect] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------ requests

    def join(self, now: Milliseconds, request: Join, handle: Handle) -> list[Effect]:
        error = self._check_join(request)
        if error is not ErrorCode.NONE:
            self._answer(handle, JoinResult(error, request.member_id))
        elif not request.member_id:
            self._join_unknown(now, request, handle)
        else:
            self._join_known(now, request, handle)
        return self._take_effects()

    def sync(self, now: Milliseconds, request: Sync, handle: Handle) -> list[Effect]:
        error = self._check_sync(request)
        if error is not ErrorCode.NONE:
            self._answer(handle, SyncResult(error))
            return self._take_effects()
        member = self.members[request.member_id]
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._touch(member, now)
            self._answer(handle, self._synced(member))
        else:
            self._park_sync(member, handle)
            if member.member_id == self.leader:
                self._assign(now, dict(request.assignments))
        if not self._unsynced:
            self._sync_deadline = None
        return self._take_effects()

    def heartbeat(
        self, now: Milliseconds, member_id: str, generation: int, instance_id: str | None = None
    ) -> ErrorCode:
        error = self._check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if not self._is_at(member_id, generation):
            return ErrorCode.ILLEGAL_GENERATION
        self._touch(self.members[member_id], now)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING_REBALANCE else ErrorCode.NONE

    def leave(self, now: Milliseconds, leaving: Iterable[Leave]) -> tuple[list[ErrorCode], list[Effect]]:
        """Remove members; return an error code for each. One rebalance follows for all of them."""
        errors = []
        lost = unblocked = False
        for who in leaving:
            member_id = who.member_id
            if not member_id and who.instance_id is not None:
                member_id = self.statics.get(who.instance_id, "")
            if member_id in self.pending and who.instance_id is None:
                del self.pending[member_id]
                unblocked = True
                errors.append(ErrorCode.NONE)
                continue
            error = self._check_member(member_id, who.instance_id)
            errors.append(error)
            if error is ErrorCode.NONE:
                self._remove(self.members[member_id])
                lost = True
        self._after_loss(now, lost=lost, unblocked=unblocked)
        return errors, self._take_effects()

    def check_commit(
        self,
        now: Milliseconds,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Return NONE if this sender may commit offsets now; that also counts as a heartbeat."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            # A non-member must not commit to a group that has members. A transactional sender is identified by its pid
            # instead.
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = self._check_member(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if not self._is_at(member_id, generation):
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE and not transactional:
            # The generation is right, but another member may get the partition a moment later.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._touch(self.members[member_id], now)
        return ErrorCode.NONE

    def close(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Answer all parked requests with an error: the coordinator stops, or the group changes its protocol."""
        for member in self.members.values():
            self._settle_join(member, JoinResult(error, member.member_id))
            self._settle_sync(member, SyncResult(error))
        self.state = GroupState.DEAD
        return self._take_effects()

    def begin(self, now: Milliseconds, behind: Mapping[str, int], *, rebalance: bool) -> list[Effect]:
        """Store a group that used the other protocol so far, and let its members join again if they must.

        `behind`: members that have reached an earlier number only. They hold what nobody else got."""
        self._behind = dict(behind)
        self._effects.append(Save())
        if rebalance:
            self._rebalance(now)
        return self._take_effects()

    # ------------------------------------------------------------------------------------------ time

    def next_deadline(self) -> Milliseconds | None:
        """Return a time before which `tick` has nothing to do. It may be too early: deadlines that were moved since the
        last `tick` still count, because to look at every member after each request would take too long."""
        has_one = self.members or self.pending or self._join_deadline is not None or self._sync_deadline is not None
        return self._soonest if has_one else None

    def tick(self, now: Milliseconds) -> list[Effect]:
        lapsed = [member_id for member_id, at in self.pending.items() if at <= now]
        for member_id in lapsed:
            del self.pending[member_id]
        silent = [member for member in self.members.values() if member.deadline is not None and member.deadline <= now]
        for member in silent:
            self._remove(member)
        self._after_loss(now, lost=bool(silent), unblocked=bool(lapsed))
        if self._join_deadline is not None and self._join_deadline <= now:
            self._join_time_is_over(now)
        if self._sync_deadline is not None and self._sync_deadline <= now:
            self._sync_deadline = None
            for member_id in sorted(self._unsynced):
                self._remove(self.members[member_id])
            self._rebalance(now)
        self._soonest = self._earliest()
        return self._take_effects()

    def _earliest(self) -> Milliseconds | None:
        deadlines = [member.deadline for member in self.members.values() if member.deadline is not None]
        deadlines += self.pending.values()
        deadlines += [at for at in (self._join_deadline, self._sync_deadline) if at is not None]
        return min(deadlines, default=None)

    def _due(self, at: Milliseconds) -> Milliseconds:
        """Return the deadline `at`, which counts from now on."""
        if self._soonest is None or at < self._soonest:
            self._soonest = at
        return at

    # ------------------------------------------------------------------------------------------ questions

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY and not self.members

    @property
    def is_unused(self) -> bool:
        """Return whether the group has no members, no pending ones, and never had any."""
        return self.is_empty and not self.pending and self.generation == 0

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics that the members read; None if unknown (not consumers, or no agreed protocol)."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return frozenset()
        topics: set[str] = set()
        for member in self.members.values():
            names = [self.protocol] if self.protocol is not None else [name for name, _ in member.protocols]
            for name in names:
                subscribed = topics_of_subscription(member.metadata(name))
                if subscribed is None:
                    return None
                topics |= subscribed
        return frozenset(topics)

    def record(self) -> GroupRecord:
        return GroupRecord(
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            tuple(member.record() for member in self.members.values()),
        )

    @classmethod
    def restore(
        cls,
        group_id: str,
        settings: GroupSettings,
        new_id: Callable[[], str],
        record: GroupRecord,
        now: Milliseconds,
    ) -> Group:
        """Restore a stored group; every member has one session timeout to send a request."""
        group = cls(group_id, settings, new_id)
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol = record.protocol
        group.leader = record.leader
        for stored in record.members:
            member = Member(*stored)
            member.deadline = group._due(now + member.session_timeout_ms)
            group.members.add(member)
            if member.instance_id is not None:
                group.statics[member.instance_id] = member.member_id
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        return group

    # ------------------------------------------------------------------------------------------ join

    def _check_join(self, request: Join) -> ErrorCode:
        settings = self.settings
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if not self._accepts(request):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not self._supports(request):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _accepts(self, request: Join) -> bool:
        taken = len(self.members)
        if request.member_id in self.members or request.instance_id in self.statics:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            # Members that do not rejoin will be removed, so only those that have rejoined count.
            taken = self.members.back
        if not request.member_id:
            # Unused ids expire late: a client that only asks for ids must not accumulate them.
            taken = max(taken, len(self.pending))
        return taken < self.settings.max_size

    def _supports(self, request: Join) -> bool:
        """Return whether a protocol remains that all members support."""
        if not request.protocol_type or not 0 < len(request.protocols) <= MOST_PROTOCOLS:
            return False
        if not self.members:
            return True
        if request.protocol_type != self.protocol_type:
            return False
        return self.members.would_agree(request.member_id, request.protocols)

    def _join_unknown(self, now: Milliseconds, request: Join, handle: Handle) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self.new_id()}"
        if request.instance_id is not None:
            former = self.statics.get(request.instance_id)
            if former is not None:
                self._replace_static(now, self.members[former], member_id, request, handle)
            else:
                self._add(now, member_id, request, handle)
        elif request.needs_known_id:
            self.pending[member_id] = self._due(now + request.session_timeout_ms)
            self._answer(handle, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(now, member_id, request, handle)

    def _join_known(self, now: Milliseconds, request: Join, handle: Handle) -> None:
        if request.member_id in self.pending and request.instance_id is None:
            del self.pending[request.member_id]
            self._add(now, request.member_id, request, handle)
            return
        error = self._check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            self._answer(handle, JoinResult(error, request.member_id))
            return
        member = self.members[request.member_id]
        unchanged = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # It missed the answer to its last JoinGroup: repeat it.
            self._touch(member, now)
            self._answer(handle, self._joined(member))
        elif self.state is GroupState.STABLE and unchanged and member.member_id != self.leader:
            self._touch(member, now)
            self._answer(handle, self._joined(member))
        else:
            # The leader of a stable group rejoins to get a new assignment (topics may have changed).
            self._update(member, request)
            self._park_join(member, handle)
            self._rebalance(now)

    def _add(self, now: Milliseconds, member_id: str, request: Join, handle: Handle) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocols,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        if request.instance_id is not None:
            self.statics[request.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        if self._initial and self.state is GroupState.PREPARING_REBALANCE:
            self._joined_in_delay = True
        self._park_join(member, handle)
        member.deadline = self._due(now + self.settings.new_member_join_timeout_ms)
        self._rebalance(now)

    def _update(self, member: Member, request: Join) -> None:
        self.members.offer(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id = request.client_id
        member.client_host = request.client_host

    def _replace_static(self, now: Milliseconds, member: Member, member_id: str, request: Join, handle: Handle) -> None:
        """Give a returning static member its new id; fence the old id, keep its place and assignment."""
        former = member.member_id
        self._settle_join(member, JoinResult(ErrorCode.FENCED_INSTANCE_ID, former))
        self._settle_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        self.members.rename(member, member_id)
        self.statics[request.instance_id or ""] = member_id
        if former in self._unsynced:
            self._unsynced.discard(former)
            self._unsynced.add(member_id)
        led = self.leader == former
        if led:
            self.leader = member_id
        self._update(member, request)
        if self.state is GroupState.STABLE and self.members.chosen_protocol() == self.protocol:
            self._touch(member, now)
            self._effects.append(Save())
            result = self._joined(member)
            if led and not request.may_skip_assignment:
                # An older client that sees its own id as the leader's would assign again, to members whose state it
                # does not know. With the old id as leader, it acts as a follower.
                result = result._replace(leader=former, members=())
            self._answer(handle, result._replace(skip_assignment=led and request.may_skip_assignment))
        else:
            self._park_join(member, handle)
            self._rebalance(now)

    # ------------------------------------------------------------------------------------------ rebalance

    def _rebalance(self, now: Milliseconds) -> None:
        """Start a rebalance after a membership change, or check whether the current one is complete."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_all_are_back(now)
            return
        self._initial = self.state is GroupState.EMPTY
        for member in self.members.values():
            if member.parked_sync is not None:
                self._settle_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
                self._touch(member, now)
        self._sync_deadline = None
        self._unsynced.clear()
        self.state = GroupState.PREPARING_REBALANCE
        timeout = self._rebalance_timeout_ms()
        if self._initial:
            delay = self.settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(timeout - delay, 0)
            self._joined_in_delay = False
            if delay:
                self._join_deadline = self._due(now + delay)
            else:
                self._complete_join(now)
        else:
            self._join_deadline = self._due(now + timeout)
            self._complete_join_if_all_are_back(now)

    def _after_loss(self, now: Milliseconds, *, lost: bool, unblocked: bool) -> None:
        """Rebalance after members were `lost`. `unblocked`: pending ids are gone, which may complete a rebalance."""
        if lost:
            self._rebalance(now)
        elif unblocked and self.state is GroupState.PREPARING_REBALANCE:
            self._complete_join_if_all_are_back(now)

    def _rebalance_timeout_ms(self) -> Milliseconds:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0) or 1

    def _complete_join_if_all_are_back(self, now: Milliseconds) -> None:
        if self.members.all_are_back and not self.pending and not self._initial:
            self._complete_join(now)

    def _join_time_is_over(self, now: Milliseconds) -> None:
        if self._initial and self._joined_in_delay and self._initial_left_ms > 0:
            # Members keep joining: wait again, at most a rebalance timeout in total.
            self._joined_in_delay = False
            delay = min(self.settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay
            self._join_deadline = self._due(now + delay)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Milliseconds) -> None:
        """Begin a new generation with the members that have rejoined."""
        for member in list(self.members.values()):
            # A static member may be restarting: it keeps its place until its session expires.
            if member.parked_join is None and member.instance_id is None:
                self._remove(member)
        if self.members and not self._elect_leader():
            self._join_deadline = self._due(now + self._rebalance_timeout_ms())
            return
        self._initial = False
        self._join_deadline = None
        self._behind = {}
        self.generation = self.generation + 1 if self.generation < 2**31 - 1 else 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.protocol = None
            self.leader = None
            self._effects.append(Save())
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol = self.members.chosen_protocol()
        for member in self.members.values():
            if member.parked_join is not None:
                self._settle_join(member, self._joined(member))
                self._touch(member, now)
                self._unsynced.add(member.member_id)
        self._sync_deadline = self._due(now + self._rebalance_timeout_ms())

    def _elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, else take the first member that has; return False if none has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.parked_join is not None:
            return True
        for member in self.members.values():
            if member.parked_join is not None:
                self.leader = member.member_id
                return True
        return False

    def _assign(self, now: Milliseconds, assignments: dict[str, bytes]) -> None:
        """Apply the leader's assignment."""
        self.state = GroupState.STABLE
        self._effects.append(Save())
        for member in self.members.values():
            self.members.assign(member, assignments.get(member.member_id, b""))
            if member.parked_sync is not None:
                self._settle_sync(member, self._synced(member))
                self._touch(member, now)

    # ------------------------------------------------------------------------------------------ members

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if instance_id is not None:
            current = self.statics.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _is_at(self, member_id: str, generation: int) -> bool:
        return generation in (self.generation, self._behind.get(member_id))

    def _check_sync(self, request: Sync) -> ErrorCode:
        error = self._check_member(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol is not None and request.protocol != self.protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _remove(self, member: Member) -> None:
        # A new member can be dropped while its JoinGroup is parked; a live client tries again.
        self._settle_join(member, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
        self._settle_sync(member, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member)
        self._unsynced.discard(member.member_id)
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _touch(self, member: Member, now: Milliseconds) -> None:
        if member.parked_join is None and member.parked_sync is None:
            member.deadline = self._due(now + member.session_timeout_ms)

    def _joined(self, member: Member) -> JoinResult:
        leads = member.member_id == self.leader
        everyone: Collection[Member] = self.members.values() if leads else ()
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            tuple(JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol)) for each in everyone),
        )

    def _synced(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    # ------------------------------------------------------------------------------------------ parked requests

    def _park_join(self, member: Member, handle: Handle) -> None:
        # With a second JoinGroup of the same member, its client has abandoned the first.
        self._settle_join(member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self.members.park_join(member, handle)
        member.deadline = None

    def _park_sync(self, member: Member, handle: Handle) -> None:
        self._settle_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.parked_sync = handle
        member.deadline = None

    def _settle_join(self, member: Member, result: JoinResult) -> None:
        handle = self.members.take_join(member)
        if handle is not None:
            self._answer(handle, result)

    def _settle_sync(self, member: Member, result: SyncResult) -> None:
        if member.parked_sync is not None:
            self._answer(member.parked_sync, result)
            member.parked_sync = None

    def _answer(self, handle: Handle, result: JoinResult | SyncResult) -> None:
        self._effects.append(Answer(handle, result))

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
