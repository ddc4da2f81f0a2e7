"""The division of a producer's memory among topics, and of a topic's share among its partitions (PROD-6).

One rule at both levels: hold at most as much as remains free.

    a topic's share        half of what the other topics leave
    a partition's part     half of what the topic's other partitions leave of that share

So a partition that floods, or has lost its leader, takes a quarter of the memory and leaves its topic another quarter.
A second bad partition takes at most half of the rest. Three exceptions keep the memory usable:

* The only partition of a topic gets the topic's whole share: it need not leave room for others.
* An empty partition may take a record of any size for which the topic has room.
* A share shrinks when other topics arrive, and a bad partition may already hold all of it. So a partition may always
  hold its part of a reserve: an eighth of all free memory, divided by the topic's non-empty partitions. Its neighbours
  can never lock it out, and the topic takes little more than its share.

The compiled kernel repeats these lines (`kernel/_intake.pxi`), because they run for every record.
"""

from __future__ import annotations

from typing import Final

RESERVE: Final = 8
"""One eighth of the free memory is the reserve that a topic's partitions may hold beyond its share."""


def topic_has_room(size: int, *, limit: int, held: int, topic: int) -> bool:
    """Return whether the topic may take `size` more; `held` of `limit` is in use, `topic` of it by this topic."""
    return topic + size <= limit - held - size


def partition_has_room(size: int, *, limit: int, held: int, topic: int, partition: int, active: int) -> bool:
    """Return whether one of several partitions may take `size` more. It holds `partition`; `active` ones are not empty.

    The share is (limit − others) / 2. Its free part must be no less than what the partition holds, both counted with
    the record: partition + size ≤ (limit − (held − topic)) / 2 − (topic + size).
    """
    if topic_has_room(size, limit=limit, held=held, topic=topic) and (
        not partition or 2 * partition + 4 * size <= limit - held - topic
    ):
        return True
    if not partition:
        active += 1
    return (partition + size) * RESERVE * active <= limit - held - size
