"""Producers of a topic, or of one pid in all topics, with H(P); transactions, and the cure of one that holds readers
back: a preview of its abort, and the form that confirms it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from fencepost.core.rows import ProducerDetails
from fencepost.core.security.access import (
    CLUSTER_ACTION,
    CLUSTER_ALTER,
    GROUP_DESCRIBE,
    TOPIC_DESCRIBE,
    TOPIC_READ,
    TRANSACTIONAL_ID_DESCRIBE,
    TRANSACTIONAL_ID_WRITE,
)
from fencepost.core.transactions import RESTING, TransactionMetadata, TransactionState
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.http.console.page import ConsoleAction, ConsolePage, Done, PageRefused, Values, Visit
from fencepost.server.http.v1.routes import STATUS
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import Topic
from fencepost.server.views.asking import HttpCaller, check
from fencepost.server.views.paging import BadQuery, Page, PagePlace, cut, write_cursor
from fencepost.server.views.topics import OpenInPartition, TopicRows, list_producers, producer_row, seen_topics
from fencepost.server.views.transactions import (
    AbortEffect,
    HeldBack,
    describe_transaction,
    effect_of_abort,
    hanging,
    held_back,
    is_hanging,
    seen_transactions,
)
from fencepost.types import Pid, TopicPartition
from fencepost.wire.apis import Key

_PATIENCE_SECONDS: Final = 10.0
"""How long a form waits for markers that the server writes."""
_PAUSE_SECONDS: Final = 0.05

Form: TypeAlias = Mapping[str, str]


class TransactionRow(NamedTuple):
    known: TransactionMetadata
    """A copy, so that the page notices a change."""
    age: float | None
    """Seconds; None if no transaction is open."""
    held: HeldBack | None

    @property
    def timeout(self) -> float:
        """Seconds."""
        return self.known.timeout_ms / 1000


def _row(caller: HttpCaller, known: TransactionMetadata) -> TransactionRow:
    if known.state in RESTING:
        return TransactionRow(copy(known), None, None)
    request = caller.request(Key.DESCRIBE_TRANSACTIONS)
    age = max(0, caller.broker.clock.now_ms() - known.started_ms) / 1000
    return TransactionRow(copy(known), age, held_back(caller.broker, known, partial(request.sees, TOPIC_DESCRIBE)))


async def read_list(visit: Visit) -> Values:
    only_open = visit.query.get("state") == "open"
    seen = await seen_transactions(visit.caller, visit.find, only_open=only_open)
    found, cursor = await cut(seen, lambda each: (each.name,), visit.place)
    rows = [_row(visit.caller, each) async for each in paced(found)]
    return {"only_open": only_open, "rows": rows, "cursor": cursor, "count": len(seen)}


# -- producers --------------------------------------------------------------------------------------------------

_MOST: Final = 20
"""Open transactions of the page, and hanging ones."""


class FoundProducer(NamedTuple):
    topic: str
    row: ProducerDetails


async def read_producers(visit: Visit) -> Values:
    query = visit.query
    topic, pid = query.get("topic", "").strip(), read_pid(query.get("pid", ""))
    find = ""
    if topic and pid is None and not _is_seen(visit, topic):
        topic, find = "", topic  # perhaps a part of a name
    place = visit.place
    topics: Page[TopicRows] | None = None
    producers: Page[FoundProducer] | None = None
    if pid is not None:
        producers = await _producers_of(visit, place, pid, topic)
    elif topic:
        found = await list_producers(visit.caller, place, topic)
        producers = Page([FoundProducer(topic, row) for row in found.items], found.next_cursor)
    else:
        topics = await _topics(visit, place, find)
    opened = await seen_transactions(visit.caller, only_open=True)
    oldest = sorted(opened, key=lambda each: each.started_ms)[:_MOST]
    return {
        "topic": topic,
        "pid": pid,
        "find": find,
        "topics": topics,
        "producers": producers,
        "opened": [_row(visit.caller, each) async for each in paced(oldest)],
        "more_opened": len(opened) - _MOST,
        "hanging": await _hanging(visit),
        "duplicates": visit.broker.counters.duplicates,
    }


def _is_seen(visit: Visit, topic: str) -> bool:
    there = visit.broker.topics.get(topic) is not None
    return there and visit.caller.request(Key.DESCRIBE_PRODUCERS).sees(TOPIC_READ, topic)


def read_pid(text: str) -> Pid | None:
    """Return the pid of a query, None if it has none; raise BadQuery for other text."""
    text = text.strip()
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,19}", text):
        raise BadQuery(f"the producer id must be a number such as 4711, not {text[:20]!r}")
    return Pid(int(text))


async def _topics(visit: Visit, place: PagePlace, find: str) -> Page[TopicRows]:
    seen, there = await seen_topics(visit.caller, find, reads=True), (await visit.snapshot()).topics
    found, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page([there[topic.name] for topic in found if topic.name in there], cursor)


async def _producers_of(visit: Visit, place: PagePlace, pid: Pid, topic: str) -> Page[FoundProducer]:
    """Return the partitions that remember the pid, in one topic or all, by topic and partition."""
    caller, after = visit.caller, place.after or ("", -1)
    if len(after) != 2 or not isinstance(after[0], str) or not isinstance(after[1], int):
        raise BadQuery("cursor is from another kind of list")
    request = caller.request(Key.DESCRIBE_PRODUCERS)
    if topic:
        request.require(TOPIC_READ, topic)
        topics: Iterable[Topic] = [caller.broker.topics.require(topic)]
    else:
        later = (each for each in caller.broker.topics if each.name >= after[0])
        topics = sorted(later, key=lambda each: each.name)
    found: list[FoundProducer] = []
    for each in topics:
        if not request.sees(TOPIC_READ, each.name):
            continue
        for partition in sorted(each.touched(), key=lambda partition: partition.index):
            entry = partition.log.producers.get(pid) if partition.log is not None else None
            if entry is not None and (each.name, partition.index) > after:
                if len(found) == place.limit:
                    return Page(found, write_cursor((found[-1].topic, found[-1].row.partition)))
                found.append(FoundProducer(each.name, producer_row(caller, partition.index, pid, entry)))
        await caller.turns()
    return Page(found, None)


async def _hanging(visit: Visit) -> list[OpenInPartition]:
    request = visit.caller.request(Key.DESCRIBE_PRODUCERS)
    found = hanging(visit.broker, (await visit.snapshot()).undecided)
    return [each for each in found if request.sees(TOPIC_READ, each.where.topic)][:_MOST]


# -- one transactional id ---------------------------------------------------------------------------------------


async def read_one(visit: Visit) -> Values:
    caller, name = visit.caller, visit.path["name"]
    await describe_transaction(caller, name)  # raises if there is none, or the caller may not see it
    found = _known(caller, name)
    request = caller.request(Key.DESCRIBE_TRANSACTIONS)
    there = [where for where in sorted(found.partitions) if caller.broker.topics.get(where.topic) is not None]
    seen = [where async for where in paced(there) if request.sees(TOPIC_DESCRIBE, where.topic)]
    page, cursor = await cut(seen, tuple, visit.place)
    groups = sorted(found.groups)
    about_groups = caller.request(Key.DESCRIBE_GROUPS)
    named = [group for group in groups if about_groups.sees(GROUP_DESCRIBE, group)]
    return {
        "row": _row(caller, found),
        "is_ongoing": found.state is TransactionState.ONGOING,
        "effects": [await _effect(caller, where, found.pid) for where in page],
        "cursor": cursor,
        "hidden": len(there) - len(seen),
        "groups": named,
        "hidden_groups": len(groups) - len(named),
        "may_abort": caller.request(Key.INIT_PRODUCER_ID).sees(TRANSACTIONAL_ID_WRITE, name),
        "who": str(caller.session.principal),
        "taken_ms": caller.broker.clock.now_ms(),
        "shown": _digest(found),
    }


def _known(caller: HttpCaller, name: str) -> TransactionMetadata:
    found = caller.broker.transactions.get(name)
    if found is None:
        raise ServerError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {name!r}")
    return found


async def _effect(caller: HttpCaller, where: TopicPartition, pid: Pid) -> AbortEffect:
    log = await caller.broker.partition(*where).open()
    found = effect_of_abort(where, log, pid)
    may_read = caller.request(Key.DESCRIBE_PRODUCERS).sees(TOPIC_READ, where.topic)
    return found if may_read else found._replace(first_offset=None)


def _digest(found: TransactionMetadata) -> str:
    """Return a text that changes with everything that an abort depends on."""
    state = [found.pid, found.epoch, found.started_ms, found.state.value, sorted(found.partitions)]
    return hashlib.sha256(json.dumps([*state, sorted(found.groups)]).encode()).hexdigest()


async def abort(visit: Visit, form: Form) -> Done:
    """Abort an open transaction and fence its producer, as `fencepost transactions abort NAME` does."""
    caller, name = visit.caller, visit.path["name"]
    path = f"/transactions/{quote(name, safe='')}"
    await describe_transaction(caller, name)
    was = _known(caller, name)
    if was.state in RESTING:
        return Done(path, f"Nothing was changed: {name} has no open transaction, its state is {was.state.value}.")
    if form.get("shown") != _digest(was):
        return Done(path, "Nothing was changed: the transaction is not the one that was shown any more. Look again.")
    count = len(was.partitions)
    is_done = await _fence(caller, was)
    markers = f"{count} partition{'s have' if count != 1 else ' has'} its marker" if is_done else (
        "the server still writes its markers"
    )  # fmt: skip
    return Done(path, f"Aborted the transaction of {name}: pid {was.pid}, epoch {was.epoch} is fenced; {markers}.")


async def _fence(caller: HttpCaller, was: TransactionMetadata) -> bool:
    """Ask for the next epoch of the id. Return False if the abort is decided, but a marker could not be written yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE_SECONDS
    while True:
        try:
            await caller.ask(
                Key.INIT_PRODUCER_ID,
                transactional_id=was.name,
                transaction_timeout=was.timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )
        except ServerError as error:
            if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise _understandable(error) from error
            if loop.time() >= deadline:
                return False
        else:
            return True
        await asyncio.sleep(_PAUSE_SECONDS)


def _understandable(error: ServerError) -> Exception:
    """Return the error, as a conflict if no HTTP status belongs to it: the request was right, but came too late."""
    return error if error.code in STATUS else PageRefused(error.reason or str(error), 409)


# -- hanging ones -----------------------------------------------------------------------------------------------


def _place(form: Form) -> tuple[TopicPartition, Pid]:
    topic, partition, pid = form.get("topic", ""), form.get("partition", ""), form.get("pid", "")
    if not topic or not (partition.isascii() and partition.isdigit()) or not (pid.isascii() and pid.isdigit()):
        raise PageRefused("the address must name a topic, a partition and a pid")
    if len(partition) > 10 or len(pid) > 19:
        raise PageRefused("the partition or the pid is too large a number")
    return TopicPartition(topic, int(partition)), Pid(int(pid))


async def read_hanging(visit: Visit) -> Values:
    caller = visit.caller
    where, pid = _place(visit.query)
    caller.request(Key.DESCRIBE_PRODUCERS).require(TOPIC_READ, where.topic)
    log = await caller.broker.partition(*where).open()
    entry = log.producers.get(pid)
    request = caller.request(Key.WRITE_TXN_MARKERS)
    is_open = entry is not None and entry.transaction_start is not None
    name = caller.broker.transactions.name_of(pid)
    if name is not None and not caller.request(Key.DESCRIBE_TRANSACTIONS).sees(TRANSACTIONAL_ID_DESCRIBE, name):
        name = None
    return {
        "where": where,
        "pid": pid,
        "epoch": entry.epoch if entry is not None else None,
        "last_ms": entry.batches[-1].timestamp if entry is not None and entry.batches else None,
        "is_open": is_open,
        "is_hanging": is_open and is_hanging(caller.broker, where, pid),
        "name": name,
        "effect": effect_of_abort(where, log, pid),
        "may_abort": request.sees(CLUSTER_ACTION) or request.sees(CLUSTER_ALTER),
        "who": str(caller.session.principal),
        "taken_ms": caller.broker.clock.now_ms(),
    }


async def abort_hanging(visit: Visit, form: Form) -> Done:
    """Write the abort marker of a hanging transaction, as `fencepost transactions abort --hanging` does."""
    caller = visit.caller
    where, pid = _place(form)
    query = urlencode({"topic": where.topic, "partition": where.partition, "pid": pid})
    path = f"/producers/hanging?{query}"
    caller.request(Key.DESCRIBE_PRODUCERS).require(TOPIC_READ, where.topic)
    entry = (await caller.broker.partition(*where).open()).producers.get(pid)
    if entry is None or entry.transaction_start is None:
        return Done(path, f"Nothing was changed: pid {pid} has no open transaction in {where}.")
    if (form.get("epoch"), form.get("first_offset")) != (str(entry.epoch), str(entry.transaction_start)):
        return Done(path, "Nothing was changed: the transaction is not the one that was shown any more. Look again.")
    marker = {
        "producer_id": pid,
        "producer_epoch": entry.epoch,
        "transaction_result": False,
        "topics": [{"name": where.topic, "partition_indexes": [where.partition]}],
        "coordinator_epoch": 0,
    }
    answer = await caller.ask(Key.WRITE_TXN_MARKERS, markers=[marker])
    [row] = answer["markers"][0]["topics"][0]["partitions"]
    if row["error_code"] == ErrorCode.INVALID_TXN_STATE:
        raise PageRefused(f"the transaction of pid {pid} in {where} is not hanging: abort it by its name", 409)
    try:
        check(row, f"ending the transaction of pid {pid} in {where}")
    except ServerError as error:
        raise _understandable(error) from error
    return Done(path, f"Aborted the hanging transaction of pid {pid} in {where}.")


PAGES: Final = (
    ConsolePage("/producers", "Producers", read_producers, "producers_live.html", "producers.html", in_navigation=True),
    ConsolePage("/transactions", "Transactional ids", read_list, "transactions_live.html", "transactions.html"),
    ConsolePage("/transactions/{name:path}", "Transaction", read_one, template="transaction.html"),
    ConsolePage("/producers/hanging", "Hanging transaction", read_hanging, template="hanging.html"),
)
ACTIONS: Final = (
    ConsoleAction("/transactions/{name:path}", abort),
    ConsoleAction("/producers/hanging", abort_hanging),
)
