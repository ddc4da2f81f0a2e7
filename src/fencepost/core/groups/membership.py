"""One reader's membership in its group: which request to send next, and what the program may be handed out.

A state machine without I/O, threads or a clock, for one thread at a time. The client (`client/share/group.py`) carries
out what `next` returns, from a thread that does not depend on the program's pace, and passes the answers back. The
program enters with every call of the reader, takes the events of `Holding`, and leaves with what it was handed out.

The protocol is KIP-848's if the server offers it and the group is not one of classic members; otherwise the classic
one, cooperative, or eager if that is all that the other members know.

A program that stays away for longer than `processing_timeout` loses everything, before anyone is told: then the member
leaves the group, and joins again only when the program has heard of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from fencepost.core.groups.classic_member import (
    ClassicAsk,
    ClassicBeat,
    ClassicJoin,
    ClassicLeave,
    ClassicMember,
    ClassicSync,
    CountPartitions,
)
from fencepost.core.groups.classic_messages import JoinResult, SyncResult
from fencepost.core.groups.consumer_member import ConsumerAnswer, ConsumerBeat, ConsumerMember
from fencepost.core.groups.holding import Holding, MemberSettings, removed, too_slow
from fencepost.errors import ErrorCode, FencepostError, PartitionsLost, ServerError, TooSlow

GroupProtocol: TypeAlias = Literal["consumer", "cooperative", "eager"]
"""KIP-848's, or the classic one with its two ways."""

Ask: TypeAlias = ConsumerBeat | ClassicAsk | ClassicLeave
Told: TypeAlias = ConsumerAnswer | JoinResult | SyncResult | ErrorCode | Mapping[str, int]

_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_OTHER_PROTOCOL: Final = frozenset(
    {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.UNSUPPORTED_VERSION}
)
"""How a coordinator says that the group speaks another protocol than this member."""
_MAX_PAUSE_SECONDS: Final = 1.0


class Identity(NamedTuple):
    """As whom a member commits."""

    member_id: str
    epoch: int
    """Its epoch, or the generation of a classic group."""
    instance_id: str | None


class Membership:
    def __init__(
        self,
        settings: MemberSettings,
        member_id: str,
        protocol: GroupProtocol,
        *,
        fixed: bool = False,
        patience: float = 60.0,
        backoff: float = 0.1,
    ) -> None:
        """`member_id`: unique, for the new protocol. `fixed`: never fall back to another protocol."""
        self.settings = settings
        self.holding = Holding()
        self.error: FencepostError | None = None
        """Why this reader can never be a member; None: it is one or may become one."""
        self.too_slow: TooSlow | None = None
        """Why it has left; it joins again after `forgive`."""
        self.heard_at = -float("inf")
        """When the newest request was sent that the coordinator answered to a member."""
        self.busy_since: float | None = None
        """When the program left the reader; None: it is inside."""
        self._id = member_id
        self._is_fixed = fixed
        self._patience = patience
        self._backoff = backoff
        self._failures = 0
        self._refused_since: float | None = None
        self._not_before = -float("inf")
        self._wants_answer_since = -float("inf")
        self._to_leave: ConsumerBeat | ClassicLeave | None = None
        self._in_flight: Ask | None = None
        self._member = self._speak(protocol)

    def _speak(self, protocol: GroupProtocol) -> ConsumerMember | ClassicMember:
        self.protocol: GroupProtocol = protocol
        if protocol == "consumer":
            return ConsumerMember(self.settings, self.holding, self._id)
        return ClassicMember(self.settings, self.holding, eager=protocol == "eager")

    @property
    def is_member(self) -> bool:
        return self.too_slow is None and self.error is None and self._member.is_member

    @property
    def is_rebalancing(self) -> bool:
        """True while the coordinator may reject commits for a moment."""
        return isinstance(self._member, ClassicMember) and self._member.is_rebalancing

    @property
    def identity(self) -> Identity:
        member = self._member
        epoch = member.epoch if isinstance(member, ConsumerMember) else member.generation
        return Identity(member.member_id, epoch, self.settings.instance_id)

    # --- the program's side ---

    def enter(self, now: float) -> None:
        """Note that the program has come back. It may be too late."""
        self.judge(now)
        self.busy_since = None

    def leave_to_program(self, now: float) -> None:
        self.busy_since = now

    def forgive(self) -> None:
        """Join again: the program knows that it was too slow."""
        self.too_slow = None

    def want_answer(self, now: float) -> None:
        """Ask the coordinator at once whether this is still a member; `heard_at` then rises above `now`."""
        self._wants_answer_since = now

    def subscribe(self, topics: frozenset[str]) -> None:
        self._member.subscribe(topics)

    def saw_partitions(self, counts: Mapping[str, int]) -> None:
        if isinstance(self._member, ClassicMember):
            self._member.saw_partitions(counts)

    def lost(self, why: str) -> None:
        """Note that another answer of the coordinator, to a commit, says that this member was removed."""
        if self.is_member:
            self._member.lost(removed(why))

    # --- the coordinator's side ---

    def next_at(self) -> float:
        """Return when `next` has something to do, if nothing else happens."""
        if self._in_flight is not None or self.error is not None:
            return float("inf")
        if self._to_leave is not None:
            return -float("inf")
        late = self._too_slow_at()
        if self.too_slow is not None:
            return late
        wanted = -float("inf") if self._wants_answer_since > self.heard_at else self._member.next_at()
        return min(late, max(wanted, self._not_before))

    def next(self, now: float) -> Ask | None:
        """Return the request to send now; None: there is nothing to send yet. One is in flight at a time."""
        self.judge(now)
        if self._in_flight is not None or self.error is not None:
            return None
        if self._to_leave is not None:
            self._in_flight, self._to_leave = self._to_leave._replace(sent_at=now), None
            return self._in_flight
        if self.too_slow is not None or now < self.next_at():
            return None
        self._in_flight = self._member.next(now)
        return self._in_flight

    def answered(self, ask: Ask, told: Told, now: float) -> None:
        if self._in_flight is not ask:
            return
        self._in_flight = None
        code = self._take(ask, told)
        if code is ErrorCode.NONE:
            self._failures = 0
            self._not_before = -float("inf")
        elif code in _AGAIN:
            self._pause(now)
        elif code in _OTHER_PROTOCOL and not self._is_fixed:
            self._change_protocol(now, code)
        elif code is ErrorCode.UNRELEASED_INSTANCE_ID:  # its former self has died, and its session has not
            self._give_up_after_patience(now, code)
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.fail(ServerError(code, f"staying in group {self.settings.group!r} as {self._who()}"))
        else:
            self.fail(ServerError(code, self._why(told) or f"group {self.settings.group!r}"))

    def unanswered(self, ask: Ask, now: float) -> None:
        """Note that the request may or may not have arrived."""
        if self._in_flight is ask:
            self._in_flight = None
            self._member.unanswered()
            self._pause(now)

    def leaving(self, now: float) -> ConsumerBeat | ClassicLeave | None:
        """Return the last request, when the reader closes. It holds nothing from now on."""
        was_member = self.is_member
        self.holding.lose(PartitionsLost("the reader is closed"))
        self.error = self.error or FencepostError("the reader is closed")
        return self._member.leaving(now, for_good=False) if was_member else None

    def _take(self, ask: Ask, told: Told) -> ErrorCode:
        member = self._member
        is_out = self.too_slow is not None
        match ask, told, member:
            case ConsumerBeat(), ConsumerAnswer(), ConsumerMember() if ask.epoch >= 0:
                if is_out:
                    return ErrorCode.NONE
                code = member.beaten(ask, told)
            case ClassicJoin(), JoinResult(), ClassicMember():
                if is_out:
                    return self._joined_in_vain(told)
                code = member.joined(ask, told)
            case ClassicSync(), SyncResult(), ClassicMember() if not is_out:
                code = member.synced(ask, told)
            case ClassicBeat(), ErrorCode(), ClassicMember() if not is_out:
                code = member.beaten(ask, told)
            case CountPartitions(), Mapping(), ClassicMember() if not is_out:
                member.counted(told)
                return ErrorCode.NONE
            case _:
                return ErrorCode.NONE  # it has left, whatever the answer is
        if code is ErrorCode.NONE and member.is_member:
            self.heard_at = max(self.heard_at, ask.sent_at)
            self._refused_since = None
        return code

    def _joined_in_vain(self, joined: JoinResult) -> ErrorCode:
        """Leave again: the program was too slow while the request was in flight."""
        if joined.error is ErrorCode.NONE and self._to_leave is None:
            self._to_leave = ClassicLeave(0.0, joined.member_id, self.settings.instance_id)
        return ErrorCode.NONE

    # --- time ---

    def _too_slow_at(self) -> float:
        if not self.holding.owned or self.too_slow is not None:
            return float("inf")
        busy = float("inf") if self.busy_since is None else self.busy_since + self.settings.processing_timeout
        return min(busy, self.holding.revoke_by)

    def judge(self, now: float) -> None:
        """Leave if the program was away for too long, or if a revocation has taken too long."""
        if now >= self._too_slow_at():
            self._to_leave = self._member.leaving(now, for_good=True)
            self.too_slow = too_slow(self.settings.processing_timeout)
            self._member.lost(self.too_slow)

    def _pause(self, now: float) -> None:
        self._failures += 1
        self._not_before = now + min(_MAX_PAUSE_SECONDS, self._backoff * 2 ** min(self._failures - 1, 10))

    # --- refusals ---

    def _change_protocol(self, now: float, code: ErrorCode) -> None:
        after: dict[GroupProtocol, GroupProtocol] = {
            "consumer": "cooperative",
            "cooperative": "eager",
            "eager": "consumer",
        }
        self.holding.lose(PartitionsLost(f"the group has changed its protocol ({code.name})"))
        self._member = self._speak(after[self.protocol])
        if self.protocol == "consumer":
            self._give_up_after_patience(now, code)

    def _give_up_after_patience(self, now: float, code: ErrorCode) -> None:
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since >= self._patience:
            self.fail(ServerError(code, f"joining group {self.settings.group!r} as {self._who()}"))
        else:
            self._pause(now)

    def _who(self) -> str:
        name = self.settings.instance_id
        return "a member" if name is None else f"member={name!r}: another process uses this name"

    def fail(self, error: FencepostError) -> None:
        """Note that this reader can never be a member."""
        self.error = error
        self.holding.lose(PartitionsLost(f"this reader is no member of its group any more: {error}"))

    @staticmethod
    def _why(told: Told) -> str | None:
        return told.message if isinstance(told, ConsumerAnswer) else None
