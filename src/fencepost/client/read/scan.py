"""The one walk over fetched record batches: which a reader may see, and where the partition goes on.

Only headers are read. Control batches and the batches of aborted transactions are left out. They are checked all the
same: nobody looks at them again, and a damaged bit must not hide a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fencepost.core.producers.aborted import CommittedOnly
from fencepost.kernel import BatchHeader, Buffer, check_batch, read_header, split_batches
from fencepost.kernel.control import is_abort
from fencepost.wire.hot import FetchedPartition


class FetchedBatch(NamedTuple):
    header: BatchHeader
    data: memoryview


def batches_in(records: Iterable[Buffer]) -> Iterator[FetchedBatch]:
    """Yield all whole batches of an answer."""
    for buffer in records:
        for batch in split_batches(buffer):
            yield FetchedBatch(read_header(batch), batch)


def visible_batches(
    answer: FetchedPartition, position: int, stop: int | None, *, committed: bool = True, every_batch: bool = False
) -> tuple[list[FetchedBatch], int]:
    """Return the batches with records from `position` to before `stop`, and the position after them.

    `committed`: leave out aborted transactions, by the list in the answer. The first and the last batch may hold
    records outside the range. `every_batch`: also control batches, and those that compaction has emptied."""
    hidden = CommittedOnly(answer.aborted or () if committed else ())
    found: list[FetchedBatch] = []
    for batch in batches_in(answer.records):
        header = batch.header
        if header.next_offset <= position:
            continue
        if stop is not None and header.base_offset >= stop:
            return found, stop
        position = header.next_offset
        if every_batch:
            found.append(batch)
        elif header.is_control:
            check_batch(batch.data)
            if header.is_transactional and is_abort(batch.data):
                hidden.ends(header.pid, header.base_offset)
        elif hidden.hides(header.pid, header.last_offset, transactional=header.is_transactional) or not header.count:
            check_batch(batch.data)
        else:
            found.append(batch)
    return found, position
