"""The path of a record into the open batch of its partition, in plain Python: the twin of `_intake.pxi`.

The compiled `Intake.send` appends a record to the open batch with the GIL as its only lock. In Python another thread
may run between any two lines, so every record takes the slow path, under the caller's lock, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.core.producers.sharing import partition_has_room, topic_has_room
from fencepost.kernel.batch_py import BatchBuilder
from fencepost.kernel.record import Headers, Payload


class Place:
    """The position of a record: its batch and its index there. Tickets derive from it."""

    __slots__ = ("index", "settlement", "timestamp")

    def __init__(self, settlement: Any, index: int, timestamp: int) -> None:
        self.settlement = settlement
        self.index = index
        self.timestamp = timestamp


class Budget:
    """The memory that all topics of a producer share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0


class Gate:
    """The switch of the fast path, shared by the senders and the thread that sets it."""

    def __init__(self) -> None:
        self.is_open = False


class Slot:
    """The open batch of one partition, if any, and the memory that the partition holds."""

    __slots__ = ("batch", "builder", "held")

    def __init__(self) -> None:
        self.held = 0
        self.batch: Any = None
        self.builder: BatchBuilder | None = None

    def begin(self, batch: Any, builder: BatchBuilder) -> None:
        self.batch = batch
        self.builder = builder

    def end(self) -> None:
        """Close the slot: nothing is appended any more."""
        self.builder = None
        self.batch = None

    def append(
        self, topic: TopicSlots, key: Payload, value: Payload, timestamp: int, headers: Headers | None = None
    ) -> int:
        """Append as `BatchBuilder.append` does, charge slot and topic, and return the record's index in the batch."""
        assert self.builder is not None
        before = self.builder.size
        topic.charge(self.builder.append(key, value, timestamp, headers) - before, self)
        return self.builder.count - 1


class TopicSlots:
    """The slots of one topic, and the memory that the topic holds."""

    __slots__ = ("active", "budget", "held", "slots", "takes_keys", "undesignated")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.held = 0
        self.active = 0
        """The number of slots that hold memory."""
        self.slots: list[Any] = []
        self.undesignated: Any = None
        self.takes_keys = False
        """Into `undesignated`, while the partitions are unknown."""

    def set_slots(self, slots: list[Any]) -> None:
        """Set one slot per partition, None for a partition without records so far; empty while they are unknown."""
        self.slots = slots

    def charge(self, size: int, slot: Slot | None = None) -> None:
        """Charge `size` bytes, or release them if negative. No slot: for records without a partition."""
        self.held += size
        self.budget.held += size
        if slot is not None:
            self._hold(size, slot)

    def move(self, size: int, source: Slot, target: Slot) -> None:
        """Move a charge from one slot to another."""
        self._hold(-size, source)
        self._hold(size, target)

    def _hold(self, size: int, slot: Slot) -> None:
        self.active -= slot.held != 0
        slot.held += size
        self.active += slot.held != 0

    def has_room_for(self, size: int, slot: Slot | None = None) -> bool:
        """Apply the rule of `core/producers/sharing.py`; without a slot, of the topic alone."""
        limit, held = self.budget.limit, self.budget.held
        if slot is None or len(self.slots) <= 1:
            return topic_has_room(size, limit=limit, held=held, topic=self.held)
        return partition_has_room(
            size, limit=limit, held=held, topic=self.held, partition=slot.held, active=self.active
        )


class Intake:
    """`send`, which always calls `slowly`."""

    def __init__(
        self,
        topics: dict[str, Any],
        ticket_type: type[Any],
        slowly: Callable[..., Any],
        batch_size: int,
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate or Gate()
        self.slowly = slowly

    @property
    def is_open(self) -> bool:
        return self.gate.is_open

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self.gate.is_open = is_open

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Any:
        return self.slowly(topic, value, key, headers, partition, timestamp)
