"""The record browser: a form whose every search is a link, a stream of matches with how far it has come, and files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.core.rows import json_bytes
from fencepost.core.search.form import FIELDS, BadSearch, SearchForm, parse_form
from fencepost.core.search.matching import RecordTests
from fencepost.core.security.access import TOPIC_READ
from fencepost.errors import FencepostError
from fencepost.server.http.access import AccessRefused
from fencepost.server.http.console.page import (
    ConsolePage,
    ConsoleStream,
    PageRefused,
    StreamedAnswer,
    Values,
    Visit,
    event,
)
from fencepost.server.http.console.rendering import counted, number, render
from fencepost.server.search.scanning import FoundRecord, Scanner, ScanOrder
from fencepost.server.search.searching import Search, SearchCount, SearchRefused
from fencepost.server.search.showing import show_record
from fencepost.types import Offset
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic

_SEND_SECONDS: Final = 0.25
"""How often a page hears of a search, at most; matches come sooner."""
_GATHERED: Final = 50
"""Matches that are sent at once."""
_RANGES_NAMED: Final = 5
_MOST_PARTITIONS_LISTED: Final = 200

StillAllowed = Callable[[], Awaitable[None]]


# -- the page -----------------------------------------------------------------------------------------------------


async def read(visit: Visit) -> Values:
    topic = _readable(visit)
    try:
        (_, form), problem = _search(visit, visit.query), ""
    except PageRefused as error:
        form, problem = SearchForm(), str(error)
    return {
        "topic": topic.name,
        "partitions": topic.partition_count,
        "most_listed": _MOST_PARTITIONS_LISTED,
        "query": {name: visit.query[name] for name in FIELDS if visit.query.get(name)},
        "form": form,
        "problem": problem,
    }


def _readable(visit: Visit) -> Topic:
    """Return the topic; raise if there is none, or the user may not read it. A refusal goes to the audit log."""
    name = visit.path["topic"]
    visit.caller.request(Key.FETCH).require(TOPIC_READ, name)
    return visit.broker.topics.require(name)


def _search(visit: Visit, query: Mapping[str, str], *, has_limit: bool = True) -> tuple[Search, SearchForm]:
    """Return the search that the query describes, or raise PageRefused."""
    topic = _readable(visit)
    try:
        form = parse_form(query)
        may_read = partial(visit.caller.request(Key.FETCH).sees, TOPIC_READ, topic.name)
        return Search(visit.broker, visit.searches, topic, form, may_read=may_read, has_limit=has_limit), form
    except (BadSearch, SearchRefused) as error:
        raise PageRefused(str(error)) from None


# -- the stream of a search -----------------------------------------------------------------------------------------


async def open_search(visit: Visit, still_allowed: StillAllowed) -> StreamedAnswer:
    search, form = _search(visit, visit.query)
    return StreamedAnswer(_events(visit, search, form, still_allowed), "text/event-stream")


async def _events(visit: Visit, search: Search, form: SearchForm, still_allowed: StillAllowed) -> AsyncIterator[str]:
    """Yield matches and how far the search has come. When the browser leaves, the search ends at once."""
    loop = asyncio.get_running_loop()
    gathered: list[FoundRecord] = []
    sent = 0.0
    try:
        async for found in search.reports():
            gathered, count = gathered + found, search.count
            is_last = count.state in ("complete", "limit", "gone")
            is_due = loop.time() - sent >= (_SEND_SECONDS / 4 if gathered else _SEND_SECONDS)
            if not (is_last or is_due or count.state == "following" or len(gathered) >= _GATHERED):
                continue
            await still_allowed()
            work = partial(_rendered, visit, form, gathered, count, is_last=is_last)
            yield await visit.searches.run(work)
            gathered, sent = [], loop.time()
    except (AccessRefused, SearchRefused, FencepostError) as error:
        yield event("end", render("records_ended.html", reason=str(error)))


def _rendered(visit: Visit, form: SearchForm, found: list[FoundRecord], count: SearchCount, *, is_last: bool) -> str:
    """Return the events of a report. For a thread: long values take milliseconds."""
    text = ""
    if found:
        shown = [show_record(record) for record in found]
        text = event("found", render("records_rows.html", records=shown, topic=visit.path["topic"]))
    values = {
        "count": count, "range": _ranges(count), "has_tests": form.has_tests, "whole": _whole(form),
        "query": {name: visit.query[name] for name in FIELDS if visit.query.get(name)},
    }  # fmt: skip
    return text + event("end" if is_last else "count", render("records_count.html", **values))


def _whole(form: SearchForm) -> str:
    """Name the range of a search that has left out nothing."""
    if form.start.kind == "last":
        last = counted(form.start.number, "offset")
        return f"the last {last} of {'each' if form.partition is None else 'the'} partition"
    return "the whole range"


def _ranges(count: SearchCount) -> str:
    """Name the offsets that were searched."""
    words = []
    for each in count.ranges[:_RANGES_NAMED]:
        if each.reached > each.start:
            words.append(f"partition {each.partition}: offset {number(each.start)} to {number(each.reached - 1)}")
        elif each.end == each.start:
            words.append(f"partition {each.partition}: none, it is empty from offset {number(each.start)} on")
    more = len(count.ranges) - _RANGES_NAMED
    return "; ".join(words) + (f"; and {number(more)} more partitions" if more > 0 else "")


# -- files ----------------------------------------------------------------------------------------------------------


async def open_lines(visit: Visit, still_allowed: StillAllowed) -> StreamedAnswer:
    search, _ = _search(visit, visit.query, has_limit=False)
    name = visit.path["topic"]
    headers = {"Content-Disposition": f'attachment; filename="{name}.jsonl"'}
    return StreamedAnswer(_lines(visit, search, still_allowed), "application/x-ndjson", headers)


async def _lines(visit: Visit, search: Search, still_allowed: StillAllowed) -> AsyncIterator[str]:
    """Yield every match as a line of JSON, as `fencepost consume --json` prints it and more; the last line says how far
    the search has come."""
    topic = visit.path["topic"]
    ended = ""
    try:
        async for found in search.reports():
            await still_allowed()
            if found:
                work = partial(_as_lines, topic, found)
                yield await visit.searches.run(work)
    except (AccessRefused, SearchRefused, FencepostError) as error:
        ended = str(error)
    count = search.count
    summary = {
        "complete": count.is_whole and not ended, "matches": count.matches, "records_searched": count.records,
        "bytes_searched": count.bytes, "notes": [*count.notes, *([ended] if ended else [])],
        "ranges": [{"partition": each.partition, "start": each.start, "end": each.reached} for each in count.ranges],
    }  # fmt: skip
    yield json.dumps({"search": summary}) + "\n"


def _as_lines(topic: str, found: list[FoundRecord]) -> str:
    return "".join(json.dumps(_as_json(topic, record), ensure_ascii=False) + "\n" for record in found)


def _as_json(topic: str, record: FoundRecord) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[name, json_bytes(value)] for name, value in record.headers],
        "codec": record.codec,
        "pid": record.pid,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "transaction": record.state or None,
    }


async def open_bytes(visit: Visit, _: StillAllowed) -> StreamedAnswer:
    """Return the key or value of one record as it is."""
    topic, path = _readable(visit), visit.path
    try:
        form = _search(visit, {"partition": path["partition"], "from": "offset", "at": path["offset"]})[1]
    except PageRefused as error:
        raise PageRefused(str(error), 404) from None
    partition = visit.broker.partition(topic.name, form.partition or 0)
    log = await partition.open()
    offset = Offset(form.start.number)
    scanner = Scanner(RecordTests(form), committed=False, max_bytes=visit.broker.config.max_inflated_bytes)
    order = ScanOrder(log, partition.index, offset, Offset(offset + 1), log.high_watermark, {}, 1)
    piece = await visit.searches.run(partial(scanner.scan, order))
    part = path["part"]
    data = (piece.found[0].key if part == "key" else piece.found[0].value) if piece.found else None
    if data is None or part not in ("key", "value"):
        raise PageRefused(f"partition {partition.index} has no record with a {part[:10]} at offset {offset}", 404)

    async def once() -> AsyncIterator[bytes]:
        yield data

    headers = {"Content-Disposition": f'attachment; filename="{topic.name}-{partition.index}-{offset}.{part}"'}
    return StreamedAnswer(once(), "application/octet-stream", headers)


PAGES: Final = (ConsolePage("/topics/{topic}/records", "Records", read, template="records.html"),)
STREAMS: Final = (
    ConsoleStream("/live/topics/{topic}/records", open_search),
    ConsoleStream("/topics/{topic}/records.jsonl", open_lines),
    ConsoleStream("/topics/{topic}/records/{partition}/{offset}/{part}", open_bytes),
)
