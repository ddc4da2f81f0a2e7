"""A search through a topic: its ranges, how far it has come, and what it may claim.

The loop plans and counts, a thread searches pieces (`scanning`). Partitions are searched one after the other, each from
its first offset to its last, so a partition and an offset say exactly where a search has stopped and can go on. Between
two pieces the search checks that its user may still read, and that the topic is still there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from fencepost.core.search.form import LogPlace, SearchForm
from fencepost.core.search.matching import RecordTests
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.log.partition import PartitionLog
from fencepost.server.search.scanning import FoundRecord, Scanner, ScanOrder
from fencepost.types import Offset

if TYPE_CHECKING:
    from fencepost.log.partition import PartitionLog
    from fencepost.server.broker import Broker
    from fencepost.server.storage.partition import Partition
    from fencepost.server.storage.topics import Topic

T = TypeVar("T")

MOST_SEARCHES: Final = 3
"""Searches at a time, each of which keeps a thread busy."""
_PLAN_SECONDS: Final = 0.3
"""How often the page hears of partitions that are being opened."""
_LOOK_SECONDS: Final = 3.0
"""How often a search that waits for new records checks that it may still read."""
_SHOWN_AT_ONCE: Final = 100
"""Matches that a following search shows of one piece; the others are only counted."""
_GATHER_SECONDS: Final = 0.1
"""How long a following search lets new records gather."""
_MOST_NOTES: Final = 20
_NO_LIMIT: Final = 2**62
_AT_ONCE: Final = 1000
"""Matches of one piece without a limit."""

SearchState: TypeAlias = Literal["planning", "searching", "following", "complete", "limit", "gone"]
"""`complete`: the whole range was searched. `limit`: there are as many matches as were asked for."""


class SearchRefused(Exception):
    """The search cannot begin; the text is for the person who asked."""


@dataclass(slots=True)
class SearchedRange:
    """The offsets of one partition that a search covers."""

    partition: int
    start: Offset
    end: Offset
    reached: Offset
    """Everything from `start` to before it is searched."""
    failed: bool = False
    """Its rest cannot be read."""


@dataclass(slots=True)
class SearchCount:
    """The progress of a search."""

    state: SearchState = "planning"
    ranges: list[SearchedRange] = field(default_factory=list)
    partitions: int = 0
    done: int = 0
    """Partitions."""
    records: int = 0
    bytes: int = 0
    offsets_total: int = 0
    offsets_done: int = 0
    """Offsets of partitions that are done."""
    matches: int = 0
    hidden: int = 0
    """Records of aborted transactions, which were not asked for."""
    left_out: int = 0
    """Matches that were too many to show."""
    notes: list[str] = field(default_factory=list)
    notes_more: int = 0

    @property
    def current(self) -> SearchedRange | None:
        return self.ranges[self.done] if self.done < len(self.ranges) else None

    @property
    def offsets(self) -> int:
        current = self.current
        return self.offsets_done + (current.reached - current.start if current is not None else 0)

    @property
    def percent(self) -> float:
        """Return the part of the range that is searched; 100 only if it is all."""
        if self.offsets_total == 0:
            return 100.0 if self.done == self.partitions else 0.0
        share = 100 * self.offsets / self.offsets_total
        return share if self.offsets == self.offsets_total else min(share, 99.9)

    @property
    def place(self) -> LogPlace | None:
        """Return the place at which the search goes on."""
        current = self.current
        return LogPlace(current.partition, current.reached) if current is not None else None

    @property
    def is_whole(self) -> bool:
        """Nothing of the range was left out: only then the search may say that there is no match."""
        return self.state in ("complete", "following") and not self.notes

    def note(self, text: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)
        else:
            self.notes_more += 1


class Searches:
    """The searches that are under way, and their threads."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._count = 0
        self.closed = False
        """The server stops."""
        self.news: set[SearchNews] = set()
        """Of searches that wait for new records."""

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place; raise SearchRefused if there is none."""
        if self._count >= MOST_SEARCHES:
            raise SearchRefused(
                f"{self._count} searches are under way, and there can be only {MOST_SEARCHES} at a time: try again "
                "when one of them has ended"
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def run(self, work: Callable[[], T]) -> T:
        """Do work in a thread; raise SearchRefused if the server stops."""
        if self.closed:
            raise SearchRefused("the server stops")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_SEARCHES, thread_name_prefix="fencepost-search")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End all searches soon."""
        self.closed = True
        for each in self.news:
            each.partition_changed()
        if self._threads is not None:
            self._threads.shutdown(wait=False)


class Search:
    """One search. `may_read` is asked again and again, because permissions may change."""

    def __init__(
        self,
        broker: Broker,
        searches: Searches,
        topic: Topic,
        form: SearchForm,
        *,
        may_read: Callable[[], bool],
        has_limit: bool = True,
    ) -> None:
        self._broker = broker
        self._searches = searches
        self._topic = topic
        self._form = form
        self._may_read = may_read
        self._limit = form.limit if has_limit else _NO_LIMIT
        self._follows = form.follows and has_limit
        tests = RecordTests(form)
        self._scanner = Scanner(
            tests,
            committed=form.committed,
            earliest=form.start.number if form.start.kind == "time" else None,
            latest=form.stop.number if form.stop.kind == "time" else None,
            max_bytes=broker.config.max_inflated_bytes,
        )
        self.count = SearchCount()
        if form.partition is not None and form.partition >= topic.partition_count:
            raise SearchRefused(
                f"topic {topic.name} has no partition {form.partition}: its last one is {topic.partition_count - 1}"
            )
        if topic.reader_group:
            raise SearchRefused(
                f"only the owners of its partitions in group {topic.reader_group!r} may read topic {topic.name}"
            )

    async def reports(self) -> AsyncIterator[list[FoundRecord]]:
        """Search, and yield what was found, again and again until the search ends; `count` says how far it has come."""
        count = self.count
        try:
            with self._searches.place():
                async for _ in self._plan():
                    yield []
                count.state = "gone" if self._is_gone else "searching"
                while (current := count.current) is not None and self._is_there():
                    room = min(self._limit - count.matches, _AT_ONCE)
                    found = await self._piece(current, room) if current.reached < current.end else []
                    if current.reached >= current.end or current.failed:
                        count.offsets_done += current.reached - current.start
                        count.done += 1
                    if count.matches >= self._limit and count.current is not None:
                        count.state = "limit"
                    if found or count.state == "limit" or current.end > current.start:
                        yield found
                    if count.state == "limit":
                        return
            if not self._is_gone:
                count.state = "following" if self._follows else "complete"
            yield []
            if count.state == "following":
                async for found in self._follow():
                    yield found
        finally:
            self._scanner.stop()

    @property
    def _is_gone(self) -> bool:
        return self.count.state == "gone"

    # -- the ranges -------------------------------------------------------------------------------------------

    async def _plan(self) -> AsyncIterator[None]:
        """Find the first and last offset of every partition."""
        loop, count, form = asyncio.get_running_loop(), self.count, self._form
        everything = range(self._topic.partition_count) if form.partition is None else (form.partition,)
        indexes = [index for index in everything if form.go is None or index >= form.go.partition]
        count.partitions = len(indexes)
        reported = loop.time()
        for index in indexes:
            if not self._is_there():
                return
            try:
                log = await self._partition(index).open()
            except FencepostError as error:
                count.note(f"partition {index}: cannot be opened: {error}")
                count.ranges.append(SearchedRange(index, Offset(0), Offset(0), Offset(0), failed=True))
                continue
            end = self._visible(log)
            start = await self._start(log, index, end)
            if form.stop.kind == "offset":
                end = min(end, Offset(form.stop.number + 1))
            start = min(start, end)
            count.ranges.append(SearchedRange(index, start, end, start))
            count.offsets_total += end - start
            if loop.time() - reported > _PLAN_SECONDS:
                reported = loop.time()
                yield

    async def _start(self, log: PartitionLog, index: int, end: Offset) -> Offset:
        form, first = self._form, log.start_offset
        if form.go is not None and form.go.partition == index:
            if form.go.offset < first:
                self.count.note(f"partition {index}: offsets {form.go.offset} to {first - 1} were deleted meanwhile")
            return min(max(Offset(form.go.offset), first), end)
        kind, number = form.start
        if kind == "last":
            return max(first, Offset(end - number))
        if kind == "offset":
            return min(max(first, Offset(number)), end)
        if kind == "time":
            found = await self._searches.run(partial(log.offset_for_time, number, upto=end))
            return found.offset if found is not None else end
        return min(first, end)

    def _visible(self, log: PartitionLog) -> Offset:
        return log.last_stable_offset if self._form.committed else log.high_watermark

    def _partition(self, index: int) -> Partition:
        partition = self._topic.partition(index)
        if partition is None:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return partition

    def _is_there(self) -> bool:
        """Tell if the search may go on."""
        if self._searches.closed:
            why = "the server stops"
        elif self._topic.deleted:
            why = "the topic was deleted"
        elif not self._may_read():
            why = "the permission to read the topic was withdrawn"
        else:
            return True
        self.count.note(f"the search has ended early: {why}")
        self.count.state = "gone"
        return False

    # -- pieces -----------------------------------------------------------------------------------------------

    async def _piece(self, current: SearchedRange, room: int, *, counts_on: bool = False) -> list[FoundRecord]:
        """Search the next piece of a range in a thread, and count it."""
        log = await self._partition(current.partition).open()
        order = ScanOrder(
            log, current.partition, current.reached, current.end, self._visible(log),
            dict(log.producers.open_transactions()), room, counts_on,
        )  # fmt: skip
        piece = await self._searches.run(partial(self._scanner.scan, order))
        count = self.count
        current.reached = piece.reached
        current.failed = piece.failed
        count.records += piece.records
        count.bytes += piece.bytes
        count.hidden += piece.hidden
        count.matches += len(piece.found) + piece.left_out
        count.left_out += piece.left_out
        for note in piece.notes:
            count.note(note)
        return piece.found

    # -- following --------------------------------------------------------------------------------------------

    async def _follow(self) -> AsyncIterator[list[FoundRecord]]:
        """Search what is written from now on."""
        count = self.count
        news = SearchNews()
        watched = [(each, self._partition(each.partition)) for each in count.ranges if not each.failed]
        self._searches.news.add(news)
        for _, partition in watched:
            partition.watch(news)
        try:
            while self._is_there():
                news.clear()
                for current, partition in watched:
                    log = partition.log
                    if log is None:
                        continue
                    end = self._visible(log)
                    while current.reached < end and not current.failed:
                        before = current.reached
                        count.offsets_total += end - current.end
                        current.end = end
                        found = await self._piece(current, _SHOWN_AT_ONCE, counts_on=True)
                        count.offsets_done += current.reached - before
                        yield found
                try:
                    await asyncio.wait_for(news.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    yield []
                await asyncio.sleep(_GATHER_SECONDS)
            yield []
        finally:
            self._searches.news.discard(news)
            for _, partition in watched:
                partition.unwatch(news)


class SearchNews(asyncio.Event):
    """Tells a following search that a partition has changed."""

    def partition_changed(self) -> None:
        self.set()
