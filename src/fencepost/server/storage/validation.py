"""Looking into the batches of a Produce before they are appended: could every reader decode them?

A batch whose lengths, offsets or number of records are wrong is refused, as Kafka refuses it, before it is anybody's
problem. The kernel walks through the records without making objects of them. That takes a few nanoseconds per record,
so small batches are looked at on the loop, where they are checked anyway (`scan_here`). What is compressed has to be
inflated first: up to a bound on the loop, beyond it in threads of its own, so that neither the loop nor the syncs wait
for it (`prepare`). No batch may inflate to more than `max_inflated_bytes`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from fencepost.errors import CorruptBatch, ErrorCode, ServerError, UnsupportedFormat
from fencepost.kernel import scan_batch
from fencepost.kernel.header import CODEC_MASK, HEADER_SIZE, BatchHeader
from fencepost.kernel.record import Scan

_CODEC_AT: Final = 22
"""The byte of a batch's attributes that names the codec."""
_PLAIN_ON_THE_LOOP: Final = 4 << 20
_INFLATED_ON_THE_LOOP: Final = 256 << 10
"""Bytes of one request that are looked through, and inflated, on the loop: about a millisecond each."""
_MOST_THREADS: Final = 4

Looked: TypeAlias = dict[int, "Scan | CorruptBatch"]
"""What was found in batches, by the identity of their bytes."""


class Validation:
    def __init__(self, max_inflated: int) -> None:
        self._max_inflated = max_inflated
        self.threads = ThreadPoolExecutor(
            max(1, min(_MOST_THREADS, (os.cpu_count() or 2) - 1)), thread_name_prefix="fencepost-inflate"
        )
        """One less than there are processors: the loop keeps one. Whoever inflates what strangers sent uses them."""

    def prepare(self, batches: Iterable[memoryview]) -> Looked | Awaitable[Looked]:
        """Looks into those batches of a request that cannot be looked at in passing. If it takes longer than the loop
        should be held up, it is done when the result is awaited."""
        looked: Looked = {}
        heavy: list[memoryview] = []
        plain, inflated = _PLAIN_ON_THE_LOOP, _INFLATED_ON_THE_LOOP
        for batch in batches:
            if len(batch) < HEADER_SIZE:
                continue
            if not batch[_CODEC_AT] & CODEC_MASK:
                plain -= len(batch)
                if plain < 0:
                    heavy.append(batch)
                continue
            found = _scan(batch, min(inflated, self._max_inflated)) if 0 < len(batch) <= inflated else None
            if isinstance(found, Scan):
                inflated -= found.size
                looked[id(batch)] = found
            else:  # damaged, or more than may be inflated here
                heavy.append(batch)
        if not heavy:
            return looked
        return self._look(heavy, looked)

    async def _look(self, batches: list[memoryview], looked: Looked) -> Looked:
        run = asyncio.get_running_loop().run_in_executor
        for batch in batches:
            looked[id(batch)] = await run(self.threads, _scan, batch, self._max_inflated)
        return looked

    def scan_here(self, batch: memoryview, header: BatchHeader, looked: Looked) -> Scan:
        """What is in the batch; INVALID_RECORD if nobody could decode it."""
        found = looked.get(id(batch))
        if found is None:
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
        # A fresh error: this one's traceback holds the frames that hold the inflated bytes, until the garbage collector
        # runs.
        return CorruptBatch(str(error))
