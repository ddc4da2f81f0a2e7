"""The partitions that a group assigns, owned as well (OWN), on fencepost's server.

A member that was paused does not know that it was replaced. Its successor claims the partition, which severs the old
connection: from then on the server serves neither its fetches nor its commits, and only then the successor reads.

The claim must not be made by a member that was replaced before it could claim. So the order is: learn the newest token,
ask the coordinator whether the partition is still assigned, claim only if nobody has claimed since (`after`). If a
successor was assigned after that question, its claim comes later and wins; if it was before, the question tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fencepost.client.own.claim import OwnBackend
from fencepost.core.own.claim_request import Refused, check_claim
from fencepost.types import TopicPartition


class Exclusive:
    def __init__(self, backend: OwnBackend, group: str) -> None:
        self._backend = backend
        self._group = group
        self._held: set[TopicPartition] = set()

    def claim(
        self, partitions: Iterable[TopicPartition], check: Callable[[Iterable[TopicPartition]], None]
    ) -> dict[TopicPartition, int]:
        """Own these partitions; return their tokens. `check` raises if they are no longer assigned to this member."""
        wanted = {str(partition): partition for partition in sorted(partitions)}
        if not wanted:
            return {}
        generations, tokens = dict.fromkeys(wanted, 1), dict.fromkeys(wanted, 0)
        while True:
            check(wanted.values())
            try:
                rows = self._backend.claim(check_claim(self._group, generations, after=tokens))
            except Refused as refused:  # an earlier member owned them, or a later one does
                for row in refused.rows:
                    generations[row.name], tokens[row.name] = max(1, row.generation), row.token
            else:
                self._held |= set(wanted.values())
                return {wanted[row.name]: row.token for row in rows}

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Release what goes to other members, before the coordinator hears of it."""
        mine = self._held & set(partitions)
        if mine:
            self._held -= mine
            self._backend.release(self._group, sorted(map(str, mine)))
