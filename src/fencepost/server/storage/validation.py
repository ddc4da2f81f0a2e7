"""Validation of the records of a Produce before they are appended, so that every reader can decode them.

As in Kafka, a batch with wrong lengths, offsets or record count is rejected. The kernel walks through the records
without creating objects, in a few nanoseconds per record, so small batches are scanned on the loop (`scan_here`).
Compressed batches must be inflated first (`prepare`): a little on the loop, the rest in separate threads, so that
neither the loop nor the syncs wait for it. The time counts, not only the bytes that come out, because thousands of tiny
blocks or batches may inflate to nothing. No batch may inflate to more than `max_inflated_bytes`, nor have more blocks
than that allows (`kernel/codecs.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Final, TypeAlias

from fencepost.errors import CorruptBatch, ErrorCode, ServerError, UnsupportedFormat
from fencepost.kernel import scan_batch
from fencepost.kernel.codecs import GZIP, ZSTD
from fencepost.kernel.header import CODEC_MASK, HEADER_SIZE, BatchHeader
from fencepost.kernel.record import Scan

_CODEC_AT: Final = 22
"""Position of the byte of a batch's attributes that holds the codec."""
_PLAIN_ON_THE_LOOP: Final = 4 << 20
_INFLATED_ON_THE_LOOP: Final = 1280 << 10
"""Bytes of one request that are scanned, and inflated, on the loop: about a millisecond each. A batch of a megabyte is
inflated here, because handing it to a thread and back takes as long as inflating it."""
_SECONDS_ON_THE_LOOP: Final = 0.003
_SLOW: Final = {GZIP: 5, ZSTD: 5}
"""How much longer these codecs take than LZ4 and Snappy for the same bytes."""
_MOST_THREADS: Final = 4

Scans: TypeAlias = dict[int, "Scan | CorruptBatch"]
"""Results of scanned batches, by the `id` of their memoryview."""


class Validation:
    def __init__(self, max_inflated: int) -> None:
        self._max_inflated = max_inflated
        self.threads = ThreadPoolExecutor(
            max(1, min(_MOST_THREADS, (os.cpu_count() or 2) - 1)), thread_name_prefix="fencepost-inflate"
        )
        """One thread less than there are processors, because the loop needs one. Other code that inflates bytes from
        clients uses these threads too."""

    def prepare(self, batches: Iterable[memoryview]) -> Scans | Awaitable[Scans]:
        """Scan the compressed and the large batches of a request. If this would block the loop for too long, return an
        awaitable that scans in threads."""
        scans: Scans = {}
        heavy: list[memoryview] = []
        plain, inflated = _PLAIN_ON_THE_LOOP, _INFLATED_ON_THE_LOOP
        ends = perf_counter() + _SECONDS_ON_THE_LOOP
        for batch in batches:
            if len(batch) < HEADER_SIZE:
                continue
            if not batch[_CODEC_AT] & CODEC_MASK:
                plain -= len(batch)
                if plain < 0:
                    heavy.append(batch)
                continue
            if perf_counter() > ends:
                inflated = 0
            slow = _SLOW.get(batch[_CODEC_AT] & CODEC_MASK, 1)
            most = inflated // slow
            found = _scan(batch, min(most, self._max_inflated)) if len(batch) <= most else None
            if isinstance(found, Scan):
                inflated -= max(found.size, len(batch)) * slow
                scans[id(batch)] = found
            else:  # damaged, or too large to inflate on the loop
                heavy.append(batch)
                if found is not None:
                    inflated = 0  # the attempt took the time that was left
        if not heavy:
            return scans
        return self._scan_in_threads(heavy, scans)

    async def _scan_in_threads(self, batches: list[memoryview], scans: Scans) -> Scans:
        run = asyncio.get_running_loop().run_in_executor
        for batch in batches:
            scans[id(batch)] = await run(self.threads, _scan, batch, self._max_inflated)
        return scans

    def scan_here(self, batch: memoryview, header: BatchHeader, scans: Scans) -> Scan:
        """Return the scan of the batch, or raise INVALID_RECORD if its records cannot be decoded."""
        found = scans.get(id(batch))
        if found is None:
            if header.codec:  # `prepare` was told that it needs no scan: the topic is new, or was changed meanwhile
                raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic has changed meanwhile: try again")
            try:
                return scan_batch(batch, header=header, max_bytes=self._max_inflated)
            except CorruptBatch as error:
                found = CorruptBatch(str(error))
        if isinstance(found, CorruptBatch):
            raise ServerError(ErrorCode.INVALID_RECORD, f"the records cannot be decoded: {found}")
        return found

    def close(self) -> None:
        self.threads.shutdown()


def _scan(batch: memoryview, max_bytes: int) -> Scan | CorruptBatch:
    try:
        return scan_batch(batch, check=False, max_bytes=max_bytes)
    except (CorruptBatch, UnsupportedFormat) as error:
        # Return a new error: this one's traceback would keep the inflated bytes alive until a garbage collection.
        return CorruptBatch(str(error))
