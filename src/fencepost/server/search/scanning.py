"""Pieces of a search, in a thread: whole batches from the log's files.

Only batches whose bytes can have a match are decoded. A piece is short, and between its slices the thread rests
as long as the pace asks for, so that producers do not notice. Everything that was passed over is counted or noted: a
search never claims to have looked at something that it has not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter, process_time, thread_time
from typing import Final, Literal, NamedTuple, TypeAlias

from fencepost.core.producers.sequence import last_of
from fencepost.core.search.matching import RecordTests
from fencepost.errors import CorruptBatch, FencepostError, UnsupportedFormat
from fencepost.kernel import Record, decode_batch, unpack
from fencepost.kernel.codecs import CODECS, NONE, unpacked
from fencepost.kernel.header import HEADER_SIZE, BatchHeader, check_batch, read_header
from fencepost.log.partition import OffsetOutOfRange, PartitionLog
from fencepost.log.reading import is_aborted
from fencepost.types import Milliseconds, Offset, Pid

PIECE_SECONDS: Final = 0.25
"""Duration of a piece, rests included: how soon the page hears of progress."""
_SLICE_BYTES: Final = 256 * 1024
"""Bytes that are read at a time."""
_FOUND_BYTES: Final = 4 << 20
"""A piece ends when its matches have so many bytes."""
_CODEC_NAMES: Final = {number: name for name, number in CODECS.items()}

WINDOW_SECONDS: Final = 0.02
"""How often the load is measured."""
_BUSY: Final = 0.05
"""Share of a core that the rest of the server uses, above which it counts as busy. It is small, because producers on
the same machine need many times the CPU that their requests need here."""
_SHARE_IF_BUSY: Final = 0.03
_SHARE_IF_IDLE: Final = 0.8
_LONGEST_REST: Final = 0.25

TransactionState: TypeAlias = Literal["", "committed", "aborted", "open"]
"""Of a record; "" if it belongs to no transaction."""


class FoundRecord(NamedTuple):
    partition: int
    offset: Offset
    timestamp: Milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    codec: str
    pid: int
    """-1 if the producer has none; then there is no epoch and no sequence."""
    epoch: int
    sequence: int
    state: TransactionState

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        return (
            len(self.key or b"")
            + len(self.value or b"")
            + sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        )


class ScanOrder(NamedTuple):
    """The range of a log that a search goes through, and the limits of one piece of it."""

    log: PartitionLog
    partition: int
    start: Offset
    stop: Offset
    """The offset before which the range ends; it may be in the middle of a batch."""
    visible: Offset
    """The end of the readable records; `open_transactions` is of the same moment."""
    open_transactions: Mapping[Pid, Offset]
    room: int
    """Matches that may be returned."""
    counts_on: bool = False
    """Go on when there is no more room, and only count the matches."""


@dataclass(slots=True)
class ScannedPiece:
    reached: Offset
    """Everything before it is searched."""
    records: int = 0
    bytes: int = 0
    hidden: int = 0
    """Records of aborted transactions, which were not asked for."""
    found: list[FoundRecord] = field(default_factory=list)
    left_out: int = 0
    """Matches that had no room."""
    notes: list[str] = field(default_factory=list)
    """Batches and offsets that could not be searched."""
    failed: bool = False
    """The rest of the partition cannot be read."""


class SearchPace:
    """The pace of a search: it works in short slices, and rests in between while the server is busy with other things.
    Times are in seconds, from any start."""

    def __init__(self, wall: float, process: float, thread: float) -> None:
        self._at = wall, process, thread
        self._share = _SHARE_IF_BUSY  # until the load is known

    def resume(self, wall: float, process: float, thread: float) -> None:
        """Begin to measure anew, perhaps in another thread; the last measurement counts until the next."""
        self._at = wall, process, thread

    def measure(self, wall: float, process: float, thread: float) -> None:
        """Note the clocks: the wall's, the CPU time of the process and that of the search's thread."""
        elapsed = wall - self._at[0]
        if elapsed < WINDOW_SECONDS:
            return
        others = (process - self._at[1]) - (thread - self._at[2])
        self._share = _SHARE_IF_BUSY if others > _BUSY * elapsed else _SHARE_IF_IDLE
        self._at = wall, process, thread

    def rest_after(self, worked: float) -> float:
        """Return how long to rest after a slice of this length."""
        return min(max(worked, 0.0) * (1 / self._share - 1), _LONGEST_REST)


class Scanner:
    """Searches pieces for one search, in one thread at a time."""

    def __init__(
        self,
        tests: RecordTests,
        *,
        committed: bool,
        earliest: Milliseconds | None = None,
        latest: Milliseconds | None = None,
        max_bytes: int = 128 << 20,
    ) -> None:
        self._tests = tests
        self._committed = committed
        self._earliest = earliest
        self._latest = latest
        self._max_bytes = max_bytes
        self._stopped = threading.Event()
        self._pace = SearchPace(perf_counter(), process_time(), thread_time())

    def stop(self) -> None:
        """End the piece that a thread works on, at once."""
        self._stopped.set()

    def scan(self, order: ScanOrder) -> ScannedPiece:
        """Search from `order.start` on, for a short time. Blocks."""
        piece = ScannedPiece(order.start)
        ends_at = perf_counter() + PIECE_SECONDS
        self._pace.resume(perf_counter(), process_time(), thread_time())
        found_bytes = 0
        while piece.reached < order.stop and not self._stopped.is_set():
            worked = thread_time()
            seen = len(piece.found)
            if not self._slice(order, piece):
                break
            found_bytes += sum(record.size for record in piece.found[seen:])
            if perf_counter() >= ends_at or found_bytes >= _FOUND_BYTES:
                break
            if len(piece.found) >= order.room and not order.counts_on:
                break
            now = thread_time()
            self._pace.measure(perf_counter(), process_time(), now)
            self._stopped.wait(self._pace.rest_after(now - worked))
        return piece

    def _slice(self, order: ScanOrder, piece: ScannedPiece) -> bool:
        """Read and search a few batches; return False if there are no more."""
        try:
            chunks = order.log.read(piece.reached, _SLICE_BYTES, upto=order.visible, block=True)
        except OffsetOutOfRange:
            first = order.log.start_offset
            if first <= piece.reached:
                piece.notes.append(f"partition {order.partition}: the log has no offset {piece.reached} any more")
                piece.failed = True
                return False
            piece.notes.append(
                f"partition {order.partition}: offsets {piece.reached} to {min(first, order.stop) - 1} were deleted "
                "before they could be searched"
            )
            piece.reached = min(first, order.stop)
            return True
        except FencepostError as error:
            piece.notes.append(f"partition {order.partition}: cannot be read from offset {piece.reached} on: {error}")
            piece.failed = True
            return False
        if not chunks:  # compaction has left nothing up to the end
            piece.reached = order.stop
            return False
        for data in chunks:
            if not self._search(data, order, piece):
                return True
        return True

    def _search(self, data: memoryview, order: ScanOrder, piece: ScannedPiece) -> bool:
        """Search whole batches; return False if there was no room for the matches of all."""
        # One look at all of it: usually nothing is there, and uncompressed batches need no look of their own.
        passes = self._tests.may_pass(data)
        at = 0
        while at < len(data):
            try:
                header = check_batch(data, at)
                is_through = self._batch(data, at, header, order, piece, passes)
            except (CorruptBatch, UnsupportedFormat) as error:
                header = read_header(data, at)
                piece.notes.append(
                    f"partition {order.partition}: the batch with offsets {header.base_offset} to {header.last_offset} "
                    f"could not be searched: {error}"
                )
                is_through = True
            if not is_through:
                return False
            piece.reached = max(min(header.next_offset, order.stop), piece.reached)
            piece.bytes += header.size
            at += header.size
            if piece.reached >= order.stop or self._stopped.is_set():
                return True
        return True

    def _batch(
        self, data: memoryview, at: int, header: BatchHeader, order: ScanOrder, piece: ScannedPiece, passes: bool
    ) -> bool:
        """Search one batch; return False if there was no room for all of its matches. It is then searched again from
        `piece.reached` on."""
        if header.is_control:
            return True
        state = _state(header, order)
        start, stop = max(header.base_offset, piece.reached), min(header.next_offset, order.stop)
        if self._committed and state == "aborted":
            piece.hidden += _count(data, at, header, start, stop)
            return True
        if header.codec == NONE:
            may_pass = passes
        else:
            payload = unpacked(header, data[at + HEADER_SIZE : at + header.size], self._max_bytes, unpack)
            may_pass = self._tests.may_pass(payload)
        if self._earliest is not None and header.max_timestamp < self._earliest:
            may_pass = False
        if not may_pass:
            piece.records += _count(data, at, header, start, stop)
            return True
        for record in decode_batch(data, at, check=False, max_bytes=self._max_bytes):
            if not start <= record.offset < stop:
                continue
            if self._is_in_time(record.timestamp) and self._tests.passes(record.key, record.value, record.headers):
                if len(piece.found) < order.room:
                    piece.found.append(_found(record, header, order.partition, state))
                elif order.counts_on:
                    piece.left_out += 1
                else:
                    piece.reached = Offset(record.offset)
                    return False
            piece.records += 1
        return True

    def _is_in_time(self, timestamp: Milliseconds) -> bool:
        if self._earliest is not None and timestamp < self._earliest:
            return False
        return self._latest is None or timestamp <= self._latest


def _found(record: Record, header: BatchHeader, partition: int, state: TransactionState) -> FoundRecord:
    sequence = -1
    if header.base_sequence >= 0:
        sequence = last_of(header.base_sequence, record.offset - header.base_offset + 1)
    return FoundRecord(
        partition, Offset(record.offset), record.timestamp, record.key, record.value, record.headers,
        _CODEC_NAMES.get(header.codec, str(header.codec)), header.pid, header.epoch, sequence, state,
    )  # fmt: skip


def _state(header: BatchHeader, order: ScanOrder) -> TransactionState:
    if not header.is_transactional:
        return ""
    if is_aborted(header, order.log.producers.aborted):
        return "aborted"
    first = order.open_transactions.get(header.pid)
    return "open" if first is not None and first <= header.base_offset else "committed"


def _count(data: memoryview, at: int, header: BatchHeader, start: int, stop: int) -> int:
    """Return the number of records of the batch with offsets from `start` to before `stop`."""
    if start <= header.base_offset and header.next_offset <= stop:
        return header.count
    if header.count == header.last_offset_delta + 1:
        return max(min(header.next_offset, stop) - max(header.base_offset, start), 0)
    return sum(start <= record.offset < stop for record in decode_batch(data, at, check=False))
