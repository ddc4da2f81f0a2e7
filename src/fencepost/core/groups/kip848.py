"""A consumer group of the new protocol (KIP-848), which has one request: ConsumerGroupHeartbeat.

The server assigns partitions, and the answers to a member's own heartbeats lead it to its part of the assignment step
by step; no member waits for another at a barrier. There is no I/O and no clock: a heartbeat comes with the time and the
existing topics, and `take_changes` returns what must be stored before its answer is sent.

Theory of operation. Three counters:

- the group's `epoch` rises when a member joins, leaves or changes its subscription, or a subscribed topic changes;
- `assignment_epoch` is the group epoch of the current *target assignment*; it catches up at the next heartbeat of any
  member;
- a member's epoch is the one it has reached. A member is *stable* when it equals `assignment_epoch`.

A member holds `assigned` partitions (it may read them) and `revoking` ones (it was told to release them and has not
confirmed). On the way to the next target it first releases partitions that are not in the target, and stays at its
epoch meanwhile. Then it gets the free ones, at the new epoch, and the rest in later heartbeats, as other members
release them. So no partition is ever held by two members: `_holders` is the table that enforces this invariant.

A member that is silent for a session timeout, or does not release its partitions within its rebalance timeout, is
removed. A static member may leave with epoch −2 to announce its return: its place is kept for a session timeout.

Members of the classic protocol may be in such a group, while clients are exchanged one by one (`migration.py`). They
are led on the same way, with their own requests: JoinGroup reports what the member holds, and is answered at once;
SyncGroup fetches what it may read; and Heartbeat tells it to join again when there is something to release or to get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from fencepost.core.groups.assignors import ASSIGNORS, PartitionId, Partitions, Subscriber
from fencepost.core.groups.classic_messages import CONSUMER, Join, JoinResult, Leave, Sync, SyncResult
from fencepost.core.groups.kip848_messages import (
    DEFAULT_ASSIGNOR,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NOTHING,
    Changes,
    ClassicPart,
    ConsumerGroupRecord,
    ConsumerGroupSettings,
    ConsumerGroupState,
    ConsumerMember,
    ConsumerMemberRecord,
    ExistingTopics,
    Heartbeat,
    HeartbeatResult,
    MemberState,
    TopicInfo,
    check_form,
    check_regex,
)
from fencepost.core.groups.patterns import matching
from fencepost.core.groups.subscription import read_subscription, write_assignment
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Milliseconds, TopicPartition

QUICK_WORK: Final = 2000
"""Topics, partitions and members that are handled in a few milliseconds."""
SOON: Final = 50
"""Milliseconds after which a member asks again for partitions that others are about to release."""
_NEVER: Final = 2**31


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    settings: ConsumerGroupSettings
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = DEFAULT_ASSIGNOR
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    statics: dict[str, str] = field(default_factory=dict)
    """instance id → member id."""
    known: dict[str, TopicInfo] = field(default_factory=dict)
    """The existing topics that members read, as of `epoch`."""
    _topics_version: object = None
    """The topics' version that `known` was made from; None: check again."""
    _holders: dict[PartitionId, str] = field(default_factory=dict)
    """The member that holds a partition, assigned or revoking."""
    _changed: bool = False
    _changed_members: set[str] = field(default_factory=set)

    # ------------------------------------------------------------------------------------------ requests

    def heartbeat(self, now: Milliseconds, request: Heartbeat, topics: ExistingTopics) -> HeartbeatResult:
        if (refused := check_form(request)) is not None:
            return refused
        try:
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                return self._leave(request)
            member, before = self._stay(now, request, topics)
        except ServerError as refusal:
            return HeartbeatResult(refusal.code, refusal.message)
        wanted = request.is_full or member.assigned != before
        assignment = member.assigned if wanted else None
        return HeartbeatResult(
            ErrorCode.NONE, None, member.member_id, member.epoch, assignment, _again_within(now, member)
        )

    def is_quick(self, request: Heartbeat, topics: ExistingTopics) -> bool:
        """Tell if `heartbeat` takes a moment only: the group is small, or the request changes nothing."""
        member = self.members.get(request.member_id)
        if (
            member is not None
            and member.state is MemberState.STABLE
            and request.member_epoch == member.epoch == self.assignment_epoch == self.epoch
            and self._topics_version == topics.version
            and request.topic_names is None
            and request.topic_regex is None
            and (request.principal, request.client_host) == (member.principal, member.client_host)
        ):
            return True
        work = self.work
        if request.topic_names is not None:
            work += len(request.topic_names)
            work += sum(topics.by_name[name].partitions for name in request.topic_names if name in topics.by_name)
        if request.topic_regex is not None or self._topics_version != topics.version:
            work += len(topics.by_name)
        if request.topic_regex:
            work += sum(info.partitions for info in topics.by_name.values())
        return work <= QUICK_WORK

    @property
    def work(self) -> int:
        """An estimate of what a change of the group costs."""
        names = sum(len(member.topic_names) + 1 for member in self.members.values())
        return names + sum(info.partitions for info in self.known.values())

    def check_commit(self, member_id: str, member_epoch: int) -> ErrorCode:
        """Return NONE if this sender may commit offsets now; `stale_commits` then looks at each partition."""
        if member_epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if 0 <= member_epoch <= member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def is_at(self, member_id: str, member_epoch: int) -> bool:
        """Return whether this is the newest epoch of the member, or nobody's."""
        member = self.members.get(member_id)
        return member is None or member.epoch == member_epoch

    def stale_commits(self, member_id: str, member_epoch: int, partitions: Iterable[PartitionId]) -> Partitions:
        """Return those of the partitions that a sender which `check_commit` allows may not commit (KIP-1251).

        The answer with the member's newest epoch may be lost or on its way, so an older epoch counts for what was
        assigned at that epoch or before, and not released since. With its newest epoch a member may commit anything."""
        member = self.members.get(member_id)
        if member is None or self.is_at(member_id, member_epoch):
            return NOTHING
        return frozenset(each for each in partitions if not member.assigned_at.get(each, _NEVER) <= member_epoch)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return NONE if this sender may fetch offsets. Non-members always may."""
        if not member_id and member_epoch < 0:
            return ErrorCode.NONE
        return self._check_epoch(member_id or "", member_epoch)

    # ------------------------------------------------------------------------------------------ classic members

    def join(self, now: Milliseconds, request: Join, asks: Heartbeat, topics: ExistingTopics) -> JoinResult:
        """Answer a JoinGroup; `asks` is what it means here (`migration.heartbeat_of`)."""
        try:
            if request.member_id and request.instance_id is not None:
                self._check_instance(asks, may_be_new=False)
            if asks.owned and request.member_id not in self.members:
                # It was removed meanwhile, and must hear of it: others may hold these partitions.
                raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not in the group")
            if not self._agrees(request):
                raise ServerError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol that all classic members offer")
            part = ClassicPart(request.session_timeout_ms, request.protocols)
            member, _ = self._stay(now, asks, topics, part)
        except ServerError as refusal:
            return JoinResult(refusal.code, request.member_id)
        if member.state is not MemberState.UNREVOKED:
            member.revoke_deadline = now + member.rebalance_timeout_ms  # for its SyncGroup
        # Nobody leads: every member gets its part from the server.
        return JoinResult(ErrorCode.NONE, member.member_id, member.epoch, CONSUMER, request.protocols[0][0])

    def sync(self, now: Milliseconds, request: Sync) -> SyncResult:
        try:
            member, part = self._classic(request.member_id, request.generation, request.instance_id)
        except ServerError as refusal:
            return SyncResult(refusal.code)
        offered = [name for name, _ in part.protocols]
        if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, *offered):
            return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._touch(member, now)
        if member.epoch < self.epoch and member.state is not MemberState.UNREVOKED:
            return SyncResult(self._rejoin(member, now))
        if member.state is not MemberState.UNREVOKED:
            member.revoke_deadline = None
        names = {info.topic_id: name for name, info in self.known.items()}
        assignment = in_bytes(member.assigned, names, part)
        return SyncResult(ErrorCode.NONE, CONSUMER, request.protocol or offered[0], assignment)

    def beat(self, now: Milliseconds, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Answer a Heartbeat of a classic member."""
        try:
            member, _ = self._classic(member_id, generation, instance_id)
        except ServerError as refusal:
            return refusal.code
        self._touch(member, now)
        if member.epoch < self.epoch or member.state is MemberState.UNREVOKED:
            return self._rejoin(member, now)
        if member.state is MemberState.UNRELEASED and not any(
            each in self._holders for each in member.target - member.assigned
        ):
            return self._rejoin(member, now)
        return ErrorCode.NONE

    def leave(self, leaving: Iterable[Leave]) -> list[ErrorCode]:
        """Remove classic members, or any static member that an administrator names without its member id."""
        errors = []
        before = len(self.members)
        for who in leaving:
            try:
                named = self.statics.get(who.instance_id or "") if not who.member_id else who.member_id
                member = self._known(named or "", who.instance_id)
                if who.member_id and member.classic is None:
                    raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, "the member does not use the classic protocol")
                self._remove(member)
                errors.append(ErrorCode.NONE)
            except ServerError as refusal:
                errors.append(refusal.code)
        if len(self.members) < before:
            self._bump()
        return errors

    def _known(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            self._check_instance(Heartbeat(member_id, JOIN_EPOCH, instance_id), may_be_new=False)
        member = self.members.get(member_id)
        if member is None:
            raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not in the group")
        return member

    def _classic(self, member_id: str, generation: int, instance_id: str | None) -> tuple[ConsumerMember, ClassicPart]:
        member = self._known(member_id, instance_id)
        if member.classic is None:
            raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not use the classic protocol")
        if generation != member.epoch:
            raise ServerError(ErrorCode.ILLEGAL_GENERATION, f"{member_id} is at {member.epoch}, not {generation}")
        return member, member.classic

    def _agrees(self, request: Join) -> bool:
        """Return whether a protocol remains that all classic members offer: without the others they need it."""
        common = {name for name, _ in request.protocols}
        for member in self.members.values():
            if member.classic is not None and member.member_id != request.member_id:
                common &= {name for name, _ in member.classic.protocols}
        return bool(common)

    @staticmethod
    def _rejoin(member: ConsumerMember, now: Milliseconds) -> ErrorCode:
        if member.revoke_deadline is None:
            member.revoke_deadline = now + member.rebalance_timeout_ms
        return ErrorCode.REBALANCE_IN_PROGRESS

    # ------------------------------------------------------------------------------------------ time

    def next_deadline(self) -> Milliseconds | None:
        deadlines = [member.deadline for member in self.members.values()]
        deadlines += [at for member in self.members.values() if (at := member.revoke_deadline) is not None]
        return min(deadlines, default=None)

    def tick(self, now: Milliseconds) -> list[str]:
        """Remove the members whose time is over, and return their ids."""
        gone = [
            member
            for member in self.members.values()
            if member.deadline <= now or (member.revoke_deadline is not None and member.revoke_deadline <= now)
        ]
        for member in gone:
            self._remove(member)
        if gone:
            self._bump()
        return [member.member_id for member in gone]

    # ------------------------------------------------------------------------------------------ questions

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(
            member.state is MemberState.STABLE and member.epoch == self.assignment_epoch
            for member in list(self.members.values())
        ):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def has_become_classic(self) -> bool:
        """Return whether the last member of the new protocol has just gone, and others are left."""
        if not self._changed and not self._changed_members:
            return False
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def subscribes(self, topic: str) -> bool:
        return any(member.subscribes(topic) for member in list(self.members.values()))

    def record(self) -> ConsumerGroupRecord:
        return ConsumerGroupRecord(self.epoch, self.assignment_epoch, self.assignor, dict(self.known))

    def take_changes(self) -> Changes | None:
        """Return the changes since the last call, or None."""
        if not self._changed and not self._changed_members:
            return None
        members = {
            member_id: self.members[member_id].record() if member_id in self.members else None
            for member_id in sorted(self._changed_members)
        }
        self._changed = False
        self._changed_members = set()
        return Changes(self.record(), members)

    def put_back(self, changes: Changes) -> None:
        """Take back changes that could not be stored: the next ones will contain them."""
        self._changed = True
        self._changed_members |= changes.members.keys()

    @classmethod
    def restore(
        cls,
        group_id: str,
        settings: ConsumerGroupSettings,
        record: ConsumerGroupRecord,
        members: Iterable[ConsumerMemberRecord],
        now: Milliseconds,
    ) -> ConsumerGroup:
        """Restore a stored group; every member has one session timeout to send a heartbeat."""
        group = cls(group_id, settings, record.epoch, record.assignment_epoch, record.assignor)
        group.known = dict(record.known)
        for stored in members:
            group.adopt(now, ConsumerMember(*stored))
        group._changed_members.clear()
        return group

    def adopt(self, now: Milliseconds, member: ConsumerMember) -> None:
        """Add a member of former times with what it holds. Raise ValueError if another one holds a part of that."""
        if not self._holders.keys().isdisjoint(held := member.assigned | member.revoking):
            raise ValueError("two members hold the same partition")
        self._touch(member, now)
        if member.state is MemberState.UNREVOKED:
            member.revoke_deadline = now + member.rebalance_timeout_ms
        self._add(member)
        for partition in held:
            self._holders[partition] = member.member_id
            member.assigned_at[partition] = member.epoch  # perhaps earlier; that is not stored

    # ------------------------------------------------------------------------------------------ staying

    def _stay(
        self, now: Milliseconds, request: Heartbeat, topics: ExistingTopics, classic: ClassicPart | None = None
    ) -> tuple[ConsumerMember, Partitions]:
        """Move the member that sends this one step on. Return it, and what was assigned to it before."""
        if request.topic_regex:
            check_regex(request.topic_regex)
        member, is_new = self._member_of(request, classic)
        resubscribed = self._update(member, request, classic) or is_new
        if resubscribed or member.matched is None or topics.version != self._topics_version:
            self._look_at(topics)
        if resubscribed:
            self._bump()
        if self.assignment_epoch < self.epoch:
            self._compute_target()
        before = member.assigned
        self._reconcile(now, member, request.owned)
        self._touch(member, now)
        return member, before

    def _touch(self, member: ConsumerMember, now: Milliseconds) -> None:
        part = member.classic
        member.deadline = now + (self.settings.session_timeout_ms if part is None else part.session_timeout_ms)

    def _member_of(self, request: Heartbeat, classic: ClassicPart | None) -> tuple[ConsumerMember, bool]:
        """Return the member that sends this, and whether it is new."""
        joins = request.member_epoch == JOIN_EPOCH
        if request.instance_id is not None:
            holder = self.statics.get(request.instance_id)
            if joins and holder is not None and holder != request.member_id:
                return self._replace_static(self.members[holder], request, classic), False
            self._check_instance(request, may_be_new=joins)
        member = self.members.get(request.member_id)
        if member is None:
            if not joins:
                raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not in the group")
            if len(self.members) >= self.settings.max_size:
                raise ServerError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"the group has {len(self.members)} members, the maximum",
                )
            return self._add(ConsumerMember(request.member_id, request.instance_id)), True
        if not joins:
            self._check_member_epoch(member, request)
        return member, False

    def _add(self, member: ConsumerMember) -> ConsumerMember:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        self._changed_members.add(member.member_id)
        return member

    def _replace_static(
        self, former: ConsumerMember, request: Heartbeat, classic: ClassicPart | None
    ) -> ConsumerMember:
        """Let a static member that returns with a new id continue where the old one stopped. In the classic protocol a
        static member does not say that it leaves."""
        if former.epoch != LEAVE_STATIC_EPOCH and former.classic is None and classic is None:
            raise ServerError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"{request.instance_id} is still used by member {former.member_id}, which has not left",
            )
        member = ConsumerMember(*former.record()._replace(member_id=request.member_id))
        member.epoch = member.previous_epoch = JOIN_EPOCH
        self._remove(former)
        for partition in member.assigned:
            self._holders[partition] = member.member_id
        return self._add(member)

    def _update(self, member: ConsumerMember, request: Heartbeat, classic: ClassicPart | None) -> bool:
        """Apply the changed fields of the request; return True if the subscription changed."""
        before = member.record()
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        if request.assignor is not None:
            member.assignor = request.assignor
        if request.topic_names is not None:
            member.subscribe(request.topic_names)
        if request.topic_regex is not None:
            member.topic_regex = request.topic_regex or None
        if (request.principal, request.client_host) != (member.principal, member.client_host):
            self._topics_version = None  # it may describe other topics
        member.client_id = request.client_id
        member.client_host = request.client_host
        member.principal = request.principal
        member.classic = classic
        after = member.record()
        if after != before:
            self._changed_members.add(member.member_id)
        return (after.topic_names, after.topic_regex) != (before.topic_names, before.topic_regex)

    def _look_at(self, topics: ExistingTopics) -> None:
        """Update the topics that are read. If they or their partition counts changed, the group's epoch rises."""
        names: set[str] = set()
        for member in self.members.values():
            names |= member.topic_names
        is_different = False
        found: dict[tuple[str, ...], frozenset[str]] = {}
        for member in self.members.values():
            matched = self._match(member, topics, found)
            is_different |= member.matched not in (None, matched)
            member.matched = matched
            names |= matched
        known = {name: topics.by_name[name] for name in sorted(name for name in names if name in topics.by_name)}
        self._topics_version = topics.version
        if known != self.known or is_different:
            self.known = known
            self._bump()

    def _match(
        self, member: ConsumerMember, topics: ExistingTopics, found: dict[tuple[str, ...], frozenset[str]]
    ) -> frozenset[str]:
        """Return the topics that the member's pattern gives it. `found` has the results for other members."""
        pattern, may_describe = member.topic_regex, topics.may_describe
        if not pattern:
            return frozenset()
        if (pattern,) not in found:
            found[pattern,] = matching(pattern, topics.by_name)
        if may_describe is None:
            return found[pattern,]
        who = member.principal, member.client_host
        if (pattern, *who) not in found:
            found[pattern, *who] = frozenset(name for name in found[pattern,] if may_describe(*who, name))
        return found[pattern, *who]

    def _topics_of(self, member: ConsumerMember) -> frozenset[str]:
        return member.topic_names | (member.matched or frozenset())

    def _bump(self) -> None:
        if self.epoch == self.assignment_epoch:
            # Several changes before the next target are one step.
            self.epoch += 1
        self._changed = True

    def _compute_target(self) -> None:
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        self.assignor = max(ASSIGNORS, key=lambda name: votes[name]) if votes else DEFAULT_ASSIGNOR
        readers = [
            Subscriber(
                member.member_id,
                member.instance_id,
                frozenset(self.known[name].topic_id for name in self._topics_of(member) if name in self.known),
                member.target,
            )
            for member in self.members.values()
        ]
        partitions = {info.topic_id: info.partitions for info in self.known.values()}
        target = ASSIGNORS[self.assignor](readers, partitions)
        for member in self.members.values():
            if member.target != target[member.member_id]:
                member.target = target[member.member_id]
                self._changed_members.add(member.member_id)
        self.assignment_epoch = self.epoch
        self._changed = True

    # ------------------------------------------------------------------------------------------ reconciliation

    def _reconcile(self, now: Milliseconds, member: ConsumerMember, owned: Partitions | None) -> None:
        """Move this member one step towards its target. `owned` are the partitions it reports; None if it does not."""
        epoch = member.epoch
        if member.state is MemberState.STABLE:
            if member.epoch == self.assignment_epoch:
                return
        elif member.state is MemberState.UNREVOKED:
            if _still_owns(owned, member.revoking):
                return
            epoch += 1
        before = member.record()
        self._step(member, epoch, owned)
        if member.record() == before:
            return
        self._changed_members.add(member.member_id)
        member.revoke_deadline = now + member.rebalance_timeout_ms if member.state is MemberState.UNREVOKED else None

    def _step(self, member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
        kept = member.assigned & member.target
        to_revoke = member.assigned - kept
        missing = member.target - kept
        free = {partition for partition in missing if self._holders.get(partition) in (None, member.member_id)}
        if to_revoke and _still_owns(owned, to_revoke):
            self._hold(member, kept, to_revoke)
            self._move(member, epoch)
            member.state = MemberState.UNREVOKED
            return
        self._hold(member, kept | free, NOTHING)
        self._move(member, self.assignment_epoch)
        held = member.assigned_at
        member.assigned_at = {partition: held.get(partition, member.epoch) for partition in member.assigned}
        member.state = MemberState.UNRELEASED if len(free) < len(missing) else MemberState.STABLE

    def _hold(self, member: ConsumerMember, assigned: Partitions, revoking: Partitions) -> None:
        for partition in (member.assigned | member.revoking) - assigned - revoking:
            del self._holders[partition]
        for partition in assigned | revoking:
            self._holders[partition] = member.member_id
        member.assigned = assigned
        member.revoking = revoking

    @staticmethod
    def _move(member: ConsumerMember, epoch: int) -> None:
        if epoch != member.epoch:
            member.previous_epoch = member.epoch
            member.epoch = epoch

    # ------------------------------------------------------------------------------------------ leaving

    def _leave(self, request: Heartbeat) -> HeartbeatResult:
        if request.instance_id is not None:
            self._check_instance(request, may_be_new=False)
        member = self.members.get(request.member_id)
        if member is None:
            raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not in the group")
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            # The session continues: if the member is not back by its end, it loses its place.
            self._hold(member, member.assigned, NOTHING)
            member.state = MemberState.STABLE
            member.epoch = LEAVE_STATIC_EPOCH
            member.revoke_deadline = None
            self._changed_members.add(member.member_id)
        else:
            self._remove(member)
            self._bump()
        return HeartbeatResult(ErrorCode.NONE, None, request.member_id, request.member_epoch)

    def _remove(self, member: ConsumerMember) -> None:
        self._hold(member, NOTHING, NOTHING)
        del self.members[member.member_id]
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]
        self._changed_members.add(member.member_id)
        # Topics that only this member subscribed to are no longer read.
        self._topics_version = None

    # ------------------------------------------------------------------------------------------ checks

    def _check_instance(self, request: Heartbeat, *, may_be_new: bool) -> None:
        holder = self.statics.get(request.instance_id or "")
        if holder is None:
            if not may_be_new:
                raise ServerError(ErrorCode.UNKNOWN_MEMBER_ID, f"instance {request.instance_id} is not in the group")
        elif holder != request.member_id:
            raise ServerError(ErrorCode.FENCED_INSTANCE_ID, f"instance {request.instance_id} is now member {holder}")

    @staticmethod
    def _check_member_epoch(member: ConsumerMember, request: Heartbeat) -> None:
        if request.member_epoch == member.epoch:
            return
        lost_answer = (
            request.member_epoch < member.epoch
            and request.member_epoch == member.previous_epoch
            and request.owned is not None
            and request.owned <= member.assigned
        )
        if not lost_answer:
            raise ServerError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"member {member.member_id} is at epoch {member.epoch}, not {request.member_epoch}; it must rejoin",
            )

    def _check_epoch(self, member_id: str, member_epoch: int) -> ErrorCode:
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH


def in_bytes(held: Partitions, names: Mapping[UUID, str], part: ClassicPart) -> bytes:
    """Return what a classic member holds, in the bytes of its protocol."""
    named = frozenset(TopicPartition(names[each.topic_id], each.partition) for each in held if each.topic_id in names)
    return write_assignment(named, read_subscription(part.protocols[0][1]).version)


def _again_within(now: Milliseconds, member: ConsumerMember) -> Milliseconds | None:
    """Return how soon a member that waits for others should ask again: often at first, because most release at once."""
    if member.state is not MemberState.UNRELEASED:
        member.waits_since = None
        return None
    if member.waits_since is None:
        member.waits_since = now
    return max(SOON, (now - member.waits_since) // 4)


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    return owned is None or not owned.isdisjoint(revoking)
