"""How a producer's memory is shared out: to topics, and inside a topic's share to its partitions (PROD-6).

One rule at both levels: at most as much as is still free.

    a topic's share        half of what the other topics leave: a topic may hold as much as is then still free
    a partition's part     half of what the topic's other partitions leave of that share, by the same rule

So one partition that floods, or has lost its leader, takes a quarter of the memory and leaves its topic another
quarter; the second bad one takes at most half of the rest. Three exceptions keep the memory usable:

* The partition of a topic that has only one gets the topic's whole share: there is nobody to leave room for.
* A partition that holds nothing may take a record for which the topic has room, however large.
* A share shrinks when other topics come, and what a bad partition holds already may then be all of it. So whatever its
  topic holds, a partition may hold its part of a reserve: an eighth of what is free in all, divided by the topic's
  partitions that hold something. It is never shut out by its neighbours, and the topic takes little more than its
  share.

The compiled kernel has these lines once more (`kernel/_intake.pxi`), since every record asks.
"""

from __future__ import annotations

from typing import Final

RESERVE: Final = 8
"""The part of the free memory, an eighth, that a topic's partitions may hold beyond its share."""


def topic_has_room(size: int, *, limit: int, held: int, topic: int) -> bool:
    """`held` of the `limit` is taken, `topic` of it by the record's topic."""
    return topic + size <= limit - held - size


def partition_has_room(size: int, *, limit: int, held: int, topic: int, partition: int, active: int) -> bool:
    """`partition` of the topic's share is taken by one of its several partitions; `active` of these hold something.

    The share is (limit − others) / 2, and what is free of it must be no less than what the partition holds, both with
    the record: partition + size ≤ (limit − (held − topic)) / 2 − (topic + size).
    """
    if topic_has_room(size, limit=limit, held=held, topic=topic) and (
        not partition or 2 * partition + 4 * size <= limit - held - topic
    ):
        return True
    if not partition:
        active += 1
    return (partition + size) * RESERVE * active <= limit - held - size
