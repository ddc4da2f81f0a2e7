"""Which partition each record of a batch belongs to that was encoded before its topic's partitions were known.

A few native calls tell it: the batch becomes columns, the keys are hashed, and the rows are sorted by partition. From
the columns they can be encoded again. Nothing of this releases the GIL for a batch of a usual size: a caller that sends
in a tight loop would keep it for five milliseconds each time.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.produce.partition_queue import (
    NAME_THE_PARTITION,
    PartitionQueue,
    ProducerBatch,
    TopicQueues,
    no_partition,
)
from fencepost.errors import FencepostError
from fencepost.kernel import ColumnDecoder, ColumnSource, decode_batch, group_rows, partition_rows

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class RowGroup(NamedTuple):
    target: PartitionQueue | Exception
    """Where the rows belong, or why they cannot be sent."""
    start: int
    stop: int


class RowGroups(NamedTuple):
    """A batch as columns, whose rows are sorted by partition."""

    source: ColumnSource
    order: ReadableBuffer
    """Row numbers, 32 bits each."""
    groups: list[RowGroup]
    """In `order`."""


def route(
    batch: ProducerBatch, topic: TopicQueues, count: int, options: ProducerOptions, *, needs_partitions: bool
) -> RowGroups:
    """Sort the records of a full batch by partition, now that the topic has `count` of them."""
    assert batch.builder is not None
    encoded = batch.builder.build()
    decoder = ColumnDecoder(headers=True)
    decoder.add(encoded, check=False)
    columns = decoder.take()
    if columns.headers is not None and not columns.headers.names.rows:
        columns = columns._replace(headers=None)  # rows without them are encoded faster
    source = ColumnSource(columns)
    named, errors = batch.routing or {}, list[Exception]()

    def fail(error: Exception) -> int:
        """Return a number for the rows that fail for this reason, behind those of the partitions."""
        errors.append(error)
        return count + len(errors)

    @cache
    def judged(partition: int, *, is_named: bool) -> int:
        try:
            if not 0 <= partition < count:
                raise no_partition(partition, count, topic.name)
            if not is_named:
                topic.check_choice(partition)
        except FencepostError as error:
            return fail(error)
        return partition

    def chosen_for(key: bytes | None) -> int:
        try:
            return judged(options.choose_partition(key, count), is_named=False)
        except Exception as error:  # noqa: BLE001 - of the user's code: for the tickets
            return fail(error)

    only = topic.only_partition(count)
    keyless = count if only is None else only
    chosen = array("i")
    if options.partitioner is not None:
        records = decode_batch(encoded, check=False)
        chosen.extend(0 if at in named else chosen_for(each.key) for at, each in enumerate(records))
    else:
        chosen.frombytes(memoryview(partition_rows(source, count, keyless=keyless)))
        if topic.owned is not None:
            chosen = array("i", [count if each == count else judged(each, is_named=False) for each in chosen])
    for at, partition in named.items():
        chosen[at] = judged(partition, is_named=True)

    targets: dict[int, PartitionQueue | Exception] = {count + 1 + at: error for at, error in enumerate(errors)}
    used = sorted(set(chosen))
    for number in used:
        if number == count:
            targets[number] = _for_keyless(topic, count, needs_partitions=needs_partitions)
        elif number < count:
            targets[number] = topic.queue(number)
    order, starts = group_rows(chosen, count + 1 + len(errors))
    groups = [RowGroup(targets[number], starts[number], starts[number + 1]) for number in used]
    return RowGroups(source, order, groups)


def _for_keyless(topic: TopicQueues, count: int, *, needs_partitions: bool) -> PartitionQueue | Exception:
    if needs_partitions:
        return FencepostError(NAME_THE_PARTITION)
    try:
        topic.pick(0, count)
    except FencepostError as error:  # nothing is owned that exists
        return error
    return topic.undesignated_queue
