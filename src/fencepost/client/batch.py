"""A processor's batch: the records of one transaction, cut from fetched chunks, and what its block sends."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from fencepost.client.produce.ticket import Ticket
from fencepost.client.produce.transaction import ProducerTransaction
from fencepost.client.producer import Producer
from fencepost.client.read.fetcher import Chunk
from fencepost.client.reader import Reader, ReadRecord
from fencepost.client.share.group import GroupMember
from fencepost.core.retrying import Extent
from fencepost.errors import Closed, FencepostError, PartitionsLost
from fencepost.kernel import Headers
from fencepost.types import Milliseconds, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.produce.table import BulkTicket, Rows


class Fetched:
    """A chunk, decoded at most once in each form, from which batches are cut."""

    def __init__(self, reader: Reader, chunk: Chunk) -> None:
        self._reader = reader
        self.chunk = chunk
        self.start: int = chunk.start
        self.stop: int = chunk.next if chunk.stop is None else min(chunk.next, chunk.stop)
        self._records: list[ReadRecord] | None = None
        self._table: pa.RecordBatch | None = None

    def records(self, start: int, stop: int) -> list[ReadRecord]:
        if self._records is None:
            self._records = self._reader._decode(self.chunk)
        rows = self._records
        first = bisect_left(rows, start, key=lambda record: record.offset)
        return rows[first : bisect_left(rows, stop, key=lambda record: record.offset)]

    def table(self, start: int, stop: int) -> pa.RecordBatch | None:
        if self._table is None:
            self._table = self._reader._table(self.chunk)
        if self._table is None:
            return None
        offsets = self._table.column("offset")
        first = bisect_left(offsets, start, key=lambda offset: offset.as_py())
        return self._table.slice(first, bisect_left(offsets, stop, key=lambda offset: offset.as_py()) - first)


class Piece:
    """A batch's part of one chunk."""

    __slots__ = ("fetched", "partition", "start", "stop")

    def __init__(self, fetched: Fetched, start: int, stop: int) -> None:
        self.fetched = fetched
        self.partition = fetched.chunk.partition
        self.start, self.stop = start, stop

    def records(self) -> list[ReadRecord]:
        return self.fetched.records(self.start, self.stop)


class Output:
    """Sends records in a batch's transaction, while the batch's block runs. Several threads may use it."""

    def __init__(self, producer: Producer) -> None:
        self._producer: Producer | None = producer
        self.send = producer.send  # type: ignore[method-assign]  # the native call itself, without a Python frame

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: Milliseconds | None = None,
    ) -> Ticket:
        """Send a record as `Producer.send`: it becomes visible if, and only if, the batch is committed."""
        return self._its.send(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)

    def send_arrow(self, topic: str, table: Rows) -> BulkTicket:
        """Send one record per row as `Producer.send_arrow`."""
        return self._its.send_arrow(topic, table)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has what was sent so far. The commit does so too."""
        self._its.flush(timeout)

    @property
    def _its(self) -> Producer:
        if self._producer is None:
            raise Closed("the batch has ended: send inside its `with batch as out:` block")
        return self._producer

    def _close(self) -> None:
        self._producer = None
        self.__dict__.pop("send", None)  # the method above raises


class Batch:
    """Records that are processed together, in one transaction: iterate over them, or take them as an Arrow table.

    The block must take all of them: if it ends before, nothing is committed, and that is an error unless `lost` is set.

    `lost` is set when this member is about to lose a partition of the batch, or has lost it. Long work should then
    leave its loop: the batch is rolled back. Work that goes on to the end is committed if the partition is still here.
    """

    def __init__(
        self,
        pieces: list[Piece],
        member: GroupMember,
        begin: Callable[[Batch], Output],
        end: Callable[[Batch, BaseException | None], bool],
    ) -> None:
        """`begin` and `end`: of its transaction; `end` returns whether the block's exception is dealt with."""
        self._pieces = pieces
        self._member = member
        self._begin, self._end = begin, end
        self._out: Output | None = None
        self._transaction: ProducerTransaction | None = None
        self._is_over = False
        self._done = 0
        """The pieces that were handed out whole."""
        self._given: ReadRecord | None = None
        """The record that the caller is working on."""
        self._is_gone = False
        """A partition is lost: what is done for it is in vain."""
        self.lost = threading.Event()
        self.partitions: frozenset[TopicPartition] = frozenset(piece.partition for piece in pieces)

    def __repr__(self) -> str:
        extents = ", ".join(f"{name} {extent.start}…{extent.stop - 1}" for name, extent in self._extents().items())
        return f"<Batch of {extents}>"

    def __iter__(self) -> Iterator[ReadRecord]:
        """Yield the records, in order per partition. Raise PartitionsLost when a partition is lost meanwhile."""
        for at, piece in enumerate(self._pieces):
            for record in piece.records():
                if self._is_gone:
                    self._raise_loss()
                self._given = record
                yield record
            self._given = None
            self._done = max(self._done, at + 1)

    def arrow(self) -> pa.Table:
        """Return the records as a `pyarrow.Table`, with the columns of `Reader.arrow`."""
        import pyarrow as pa

        if self._is_gone:
            self._raise_loss()
        tables = [piece.fetched.table(piece.start, piece.stop) for piece in self._pieces]
        self._done, self._given = len(self._pieces), None
        return pa.Table.from_batches([table for table in tables if table is not None])

    def __enter__(self) -> Output:
        if self._out is not None or self._is_over:
            raise FencepostError("a batch is processed once: its records come again only if it fails")
        self._out = self._begin(self)
        return self._out

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._out is not None
        self._is_over = True
        self._out._close()
        return self._end(self, error)

    def _decode(self) -> None:
        for piece in self._pieces:
            piece.records()

    def _raise_loss(self) -> NoReturn:
        """Raise PartitionsLost; or TooSlow, if that is why."""
        self._member.check_held(self.partitions)
        lost = PartitionsLost("the group has given a partition of this batch to another member; it is rolled back")
        lost.partitions = tuple(sorted(self.partitions))
        raise lost

    def _extents(self) -> dict[TopicPartition, Extent]:
        extents: dict[TopicPartition, Extent] = {}
        for piece in self._pieces:
            before = extents.get(piece.partition)
            extents[piece.partition] = Extent(piece.start if before is None else before.start, piece.stop)
        return extents

    def _check_taken(self) -> None:
        """Raise unless every record was handed out. Whether the caller is done with the last one, nobody knows."""
        if self._done < len(self._pieces):
            if self.lost.is_set():
                self._raise_loss()
            raise FencepostError(
                f"the block has not taken all records of {self!r}, so nothing was committed: iterate to the end, or "
                "call arrow(); for fewer records per transaction use batch_records"
            )

    def _working_on(self) -> tuple[TopicPartition, int] | None:
        given = self._given
        return None if given is None else (TopicPartition(given.topic, given.partition), given.offset)
