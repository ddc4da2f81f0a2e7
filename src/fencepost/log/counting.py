"""Counting the committed records between two offsets, from the headers of batches.

Offsets are not records: a transaction's marker takes an offset, compaction leaves gaps, and readers of committed
records skip those of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fencepost.core.producers.aborted import AbortedTransactions
from fencepost.kernel import decode_batch
from fencepost.kernel.header import BatchHeader
from fencepost.log.handles import Handles
from fencepost.log.reading import headers_from
from fencepost.log.segment import Placed, Segment
from fencepost.types import Offset

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog


class CountedRecords(NamedTuple):
    records: int
    """Those from the first offset to before `reached`."""
    reached: Offset
    batches: int
    """Headers that were read."""


def count_committed(log: PartitionLog, start: Offset, upto: Offset, most_batches: int) -> CountedRecords:
    """Count the committed records from `start` to before `upto`, which must not be behind the last stable offset. Stop
    after `most_batches`. Blocks; any thread may call it."""
    return log.with_segments(lambda segments: _count(log, segments, start, upto, most_batches))


def _count(
    log: PartitionLog, segments: Sequence[Segment], start: Offset, upto: Offset, most_batches: int
) -> CountedRecords:
    handles, aborted, interval = log.handles, log.producers.aborted, log.config.index_interval_bytes
    records = batches = 0
    reached = start
    for number, segment in enumerate(segments):
        if segment.base_offset >= upto:
            break
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start:
            continue
        for placed in headers_from(handles, segment, reached, interval):
            header = placed.header
            if header.base_offset >= upto:
                break
            if batches == most_batches:
                return CountedRecords(records, reached, batches)
            batches += 1
            if not header.is_control and not is_aborted(header, aborted):
                records += _within(handles, segment, placed, start, upto)
            reached = min(header.next_offset, upto)
    return CountedRecords(records, upto, batches)


def is_aborted(header: BatchHeader, aborted: AbortedTransactions) -> bool:
    """Tell if a batch of records belongs to an aborted transaction."""
    return header.is_transactional and any(
        each.pid == header.pid and each.first_offset <= header.base_offset < each.marker_offset
        for each in aborted.between(header.base_offset, header.next_offset)
    )


def _within(handles: Handles, segment: Segment, placed: Placed, start: Offset, upto: Offset) -> int:
    """Return the number of the batch's records with offsets from `start` to before `upto`."""
    header = placed.header
    if start <= header.base_offset and header.next_offset <= upto:
        return header.count
    if header.count == header.last_offset_delta + 1:
        return min(header.next_offset, upto) - max(header.base_offset, start)
    with handles.using(segment.handle) as fd:  # compaction has removed some of its records
        data = handles.files.read(fd, header.size, placed.position)
    return sum(start <= record.offset < upto for record in decode_batch(data))
