"""A classic group under a hand-wound clock: requests go in, answers are looked up by the handles they got."""

from __future__ import annotations

import itertools
from typing import Any

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import (
    Answer,
    Effect,
    GroupSettings,
    GroupState,
    Join,
    JoinResult,
    Leave,
    Sync,
    SyncResult,
)
from fencepost.errors import ErrorCode

SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"range metadata"),)


class GroupUnderTest:
    """Checks on the way that every request is answered exactly once."""

    def __init__(self, **settings: Any) -> None:
        numbers = itertools.count(1)
        self.group = Group("group", GroupSettings(**settings), lambda: f"{next(numbers):04}")
        self.now = 0
        self.saves = 0
        self.answers: dict[int, JoinResult | SyncResult] = {}
        self.unanswered: set[int] = set()
        self._handles = itertools.count(1)

    # --- requests ---

    def join(self, member_id: str = "", **how: Any) -> int:
        """Sends a JoinGroup; answers with its handle."""
        request = Join(
            **{
                "member_id": member_id,
                "session_timeout_ms": SESSION_MS,
                "rebalance_timeout_ms": REBALANCE_MS,
                "protocol_type": "consumer",
                "protocols": RANGE,
                "client_id": "client",
                **how,
            }
        )
        handle = self._park()
        self._take(self.group.join(self.now, request, handle))
        return handle

    def enter(self, **how: Any) -> tuple[str, int]:
        """Joins as a dynamic member does it: asks for an id, comes back with it. (member id, parked handle)"""
        asked = self.joined(self.join(**how))
        assert asked.error is ErrorCode.MEMBER_ID_REQUIRED
        return asked.member_id, self.join(asked.member_id, **how)

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **how: Any) -> int:
        how.setdefault("generation", self.group.generation)
        handle = self._park()
        request = Sync(member_id=member_id, assignments=tuple((assignments or {}).items()), **how)
        self._take(self.group.sync(self.now, request, handle))
        return handle

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        at = self.group.generation if generation is None else generation
        return self.group.heartbeat(self.now, member_id, at, instance_id)

    def leave(self, *leaving: Leave | str) -> list[ErrorCode]:
        errors, effects = self.group.leave(
            self.now, [Leave(each) if isinstance(each, str) else each for each in leaving]
        )
        self._take(effects)
        return errors

    def advance(self, milliseconds: int) -> None:
        """Lets time pass, and everything happen that is due meanwhile, each at its time."""
        end = self.now + milliseconds
        while (at := self.group.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self._take(self.group.tick(self.now))
        self.now = end

    # --- answers ---

    def state(self) -> GroupState:
        return self.group.state

    def joined(self, handle: int) -> JoinResult:
        result = self.answers[handle]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, handle: int) -> SyncResult:
        result = self.answers[handle]
        assert isinstance(result, SyncResult)
        return result

    def is_parked(self, handle: int) -> bool:
        return handle in self.unanswered

    # --- whole rounds ---

    def stable(self, count: int, **how: Any) -> list[str]:
        """A stable group of so many dynamic members; the first leads."""
        members: list[str] = []
        for _ in range(count):
            newcomer, parked = self.enter(**how)
            handles = [self.join(member_id, **how) for member_id in members]
            members.append(newcomer)
            for handle in (parked, *handles):
                assert self.joined(handle).error is ErrorCode.NONE
            leader = self.group.leader
            assert leader is not None
            followers = [self.sync(member_id) for member_id in members if member_id != leader]
            handle = self.sync(leader, {member_id: member_id.encode() for member_id in members})
            for each in (handle, *followers):
                assert self.synced(each).error is ErrorCode.NONE
        return members

    # --- inside ---

    def _park(self) -> int:
        handle = next(self._handles)
        self.unanswered.add(handle)
        return handle

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert isinstance(effect.handle, int)
                assert effect.handle in self.unanswered, f"request {effect.handle} was answered twice"
                self.unanswered.discard(effect.handle)
                self.answers[effect.handle] = effect.result
            else:
                self.saves += 1
