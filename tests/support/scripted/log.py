"""A partition's log in memory."""

from __future__ import annotations

from fencepost.core.producers.dedup import Accept, Conflict, Duplicate, Forgotten, ProducerTable, StaleEpoch
from fencepost.errors import ErrorCode
from fencepost.kernel import Buffer, check_batch, stamp_offset
from fencepost.types import Offset


class MemoryLog:
    """One partition: a list of batches, and the state of its producers."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.producers = ProducerTable()
        self.leader = 0
        self.leader_epoch = 0
        self.max_batch_bytes = 1 << 20
        self.replicated_to: int | None = None
        """The high watermark: readers do not see the unreplicated records after it; None: all is replicated."""

    def append(self, data: memoryview) -> tuple[ErrorCode, int]:
        header = check_batch(data)
        if header.size > self.max_batch_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.is_idempotent:
            judged = header.sequenced(header.crc, header.max_timestamp)
            verdict = self.producers.judge(judged)
            match verdict:
                case Accept():
                    self.producers.apply(judged, Offset(self.end), 0)
                case Duplicate(base_offset=offset):
                    return ErrorCode.NONE, offset
                case StaleEpoch():
                    return ErrorCode.INVALID_PRODUCER_EPOCH, -1
                case Conflict():
                    return ErrorCode.INVALID_RECORD, -1
                case Forgotten():
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
                case _:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        stored = bytearray(data)
        stamp_offset(stored, self.end, self.leader_epoch)
        self.batches.append(bytes(stored))
        self.end += header.last_offset_delta + 1
        return ErrorCode.NONE, self.end - header.count

    def lose_tail(self, batches: int) -> None:
        """Drop the newest batches, as an unclean leader election does."""
        kept = self.batches[:-batches]
        self.batches, self.end, self.producers = [], 0, ProducerTable()
        for batch in kept:
            self.append(memoryview(batch))

    @property
    def high_watermark(self) -> int:
        return self.end if self.replicated_to is None else min(self.end, self.replicated_to)

    def read(self, offset: int, max_bytes: int) -> list[Buffer]:
        """Return whole batches up to `max_bytes`, but at least one if there is any."""
        found: list[Buffer] = []
        for batch in self.batches:
            if offset < check_batch(batch).next_offset <= self.high_watermark:
                max_bytes -= len(batch)
                if found and max_bytes < 0:
                    break
                found.append(batch)
        return found
