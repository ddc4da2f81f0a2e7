"""Long work in pieces: other tasks get their turn in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.own.ownership import OwnershipTable
from fencepost.errors import ErrorCode, Malformed, ServerError
from fencepost.server.api import APIS
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.net.router import ApiRequest
from fencepost.server.net.session import Session
from fencepost.server.net.turns import Codecs, SharedTurns, in_pieces, merged, paced
from fencepost.wire.own import UNSET_TOKEN

pytestmark = pytest.mark.unit


def slowly(number: int) -> int:
    time.sleep(0.001)
    return number


async def turns_of_another(work: Awaitable[Any]) -> int:
    """Return how often another task got its turn before the work was done."""
    turns, done = 0, False

    async def another() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(another())
    await work
    done = True
    await task
    return turns


def test_a_short_list_is_worked_off_at_once() -> None:
    assert in_pieces([1, 2, 3], lambda number: number + 1, tuple) == (2, 3, 4)


async def test_a_long_list_is_worked_off_in_pieces_with_others_in_between() -> None:
    pieces = in_pieces(range(200), slowly, lambda rows: rows)
    assert isinstance(pieces, Awaitable)
    assert await turns_of_another(pieces) > 10


async def test_a_list_that_is_gone_through_keeps_its_order_and_lets_others_in() -> None:
    seen: list[int] = []

    async def go() -> None:
        seen.extend([slowly(number) async for number in paced(range(200))])

    turns = await turns_of_another(go())
    assert seen == list(range(200))
    assert turns > 10


async def test_many_who_want_the_same_turn_share_its_time() -> None:
    turns, done = SharedTurns(), list[int]()

    async def one(number: int) -> None:
        await turns()
        turns.spend(0.1)  # or so it says
        done.append(number)

    turns.spend(1)
    tasks = [asyncio.ensure_future(one(number)) for number in range(50)]
    at_once = []
    while not all(task.done() for task in tasks):
        before = len(done)
        await asyncio.sleep(0)
        at_once.append(len(done) - before)
    assert done == list(range(50))
    assert max(at_once) == 1


async def test_those_who_are_woken_together_share_one_turn_and_keep_their_order() -> None:
    """After a short turn several are woken, because most need little time; here the first of these takes all of it."""
    turns, done = SharedTurns(), list[int]()

    async def one(number: int) -> None:
        await turns()
        turns.spend(0.1 if number % 10 else 0.0)
        done.append(number)

    turns.spend(1)
    tasks = [asyncio.ensure_future(one(number)) for number in range(50)]
    at_once = []
    while not all(task.done() for task in tasks):
        before = len(done)
        await asyncio.sleep(0)
        at_once.append(sum(number % 10 > 0 for number in done[before:]))
    assert done == list(range(50))
    assert max(at_once) == 1


async def test_few_of_many_groups_are_deleted_in_one_turn() -> None:
    since, most = 0, 0

    class Groups:
        def get(self, name: str) -> None:
            return None

        async def delete(self, name: str) -> ErrorCode:
            nonlocal since
            since += 1
            return ErrorCode.GROUP_ID_NOT_FOUND

    broker: Any = SimpleNamespace(groups=Groups())
    message = SimpleNamespace(groups_names=[f"{n}" for n in range(2000)])
    connection: Any = SimpleNamespace(session=None, authorizer=SimpleNamespace(allows=lambda *asked: True))
    answer = APIS[42].handle(broker, ApiRequest(42, 2, "", message, 0, connection))
    assert isinstance(answer, Awaitable)
    task = asyncio.ensure_future(answer)
    while not task.done():
        since = 0
        await asyncio.sleep(0)
        most = max(most, since)
    assert 0 < most <= 100


class Connected:
    session = None
    authorizer = SimpleNamespace(allows=lambda *asked: True)
    severed = False


async def longest_piece(work: Awaitable[Any], table: OwnershipTable[Any]) -> tuple[Any, int, int]:
    """Return the result, and the most resources that were granted and released in one turn."""
    granted, released = 0, 0
    task = asyncio.ensure_future(work)
    before = len(list(table))
    while not task.done():
        await asyncio.sleep(0)
        now = len(list(table))
        granted, released = max(granted, now - before), max(released, before - now)
        before = now
    return await task, granted, released


def own(owners: Any, connection: Any, **fields: Any) -> Awaitable[Any]:
    message = SimpleNamespace(**{"group": "g", "wait_ms": 0, "session_ms": 0, "resources": [], "release": [], **fields})
    broker: Any = SimpleNamespace(owners=owners, topics=SimpleNamespace(get=lambda name: None))
    answer = APIS[10_000].handle(broker, ApiRequest(10_000, 1, "", message, 0, connection))
    assert isinstance(answer, Awaitable)
    return answer


async def test_a_claim_of_many_is_granted_as_a_whole_and_released_in_pieces() -> None:
    table: OwnershipTable[Any] = OwnershipTable()

    class Owners:
        def __init__(self) -> None:
            self.table = table

        async def claim(self, connection: Any, group: str, claimed: Any) -> Any:
            return table.claim(connection, group, claimed)

        def release(self, connection: Any, group: str, names: Any) -> None:
            time.sleep(0.001)
            table.release(connection, group, names)

    names = [f"r{n}" for n in range(5000)]
    resources = [SimpleNamespace(name=name, generation=1, after_token=UNSET_TOKEN) for name in names]
    connection = Connected()
    answer, granted, _ = await longest_piece(own(Owners(), connection, resources=resources), table)
    assert granted == len(answer["resources"]) == 5000
    _, _, released = await longest_piece(own(Owners(), connection, release=names), table)
    assert 0 < released < 5000


async def test_a_claim_that_is_severed_while_it_is_checked_is_refused() -> None:
    table: OwnershipTable[Any] = OwnershipTable()
    connection = Connected()

    class Slow(SimpleNamespace):
        @property
        def generation(self) -> int:
            time.sleep(0.004)
            return 1

    async def claim(*claimed: Any) -> Any:
        raise AssertionError("a severed connection must not claim")

    resources = [Slow(name=f"r{n}", after_token=UNSET_TOKEN) for n in range(30)]
    task = asyncio.ensure_future(own(SimpleNamespace(table=table, claim=claim), connection, resources=resources))
    await asyncio.sleep(0)
    connection.severed = True
    answer: dict[str, Any] = await task
    assert answer["error_code"] is not ErrorCode.NONE


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (15, 0, lambda: {"groups": [f"{n}" for n in range(50_000)]}),
        (10, 4, lambda: {"key_type": 0, "coordinator_keys": [f"{n}" for n in range(50_000)]}),
        (65, 0, lambda: {"transactional_ids": [f"{n}" for n in range(50_000)]}),
        (69, 0, lambda: {"group_ids": [f"{n}" for n in range(50_000)]}),
        (32, 1, lambda: {"include_synonyms": True, "resources": [
            SimpleNamespace(resource_type=9, resource_name=f"{n}", configuration_keys=None) for n in range(50_000)]}),
        (9, 8, lambda: {"groups": [SimpleNamespace(group_id=f"{n}", topics=()) for n in range(50_000)]}),
        (13, 3, lambda: {"group_id": "g", "members": [
            SimpleNamespace(member_id=f"{n}", group_instance_id=None) for n in range(150_000)]}),
        (24, 3, lambda: {"v3_and_below_transactional_id": "t", "v3_and_below_producer_id": 1,
                 "v3_and_below_producer_epoch": 0, "v3_and_below_topics": [
                     SimpleNamespace(name=f"{n}", partitions=[0]) for n in range(50_000)]}),
        (28, 0, lambda: {"transactional_id": "t", "group_id": "", "topics": [SimpleNamespace(name=f"{n}", partitions=[
            SimpleNamespace(partition_index=0)]) for n in range(50_000)]}),
        (47, 0, lambda: {"group_id": "g", "topics": [SimpleNamespace(name=f"{n}", partitions=[
            SimpleNamespace(partition_index=0)]) for n in range(50_000)]}),
        (50, 0, lambda: {"users": [SimpleNamespace(name=f"{n}") for n in range(50_000)]}),
        (75, 0, lambda: {"topics": [SimpleNamespace(name=f"{n}") for n in range(50_000)], "cursor": None,
                 "response_partition_limit": 2000}),
    ],
    ids=lambda value: value if isinstance(value, int) else "",
)  # fmt: skip
async def test_a_handler_of_a_long_list_lets_others_in(
    key: int, version: int, fields: Callable[[], dict[str, Any]]
) -> None:
    """The lists are made when the test runs: every worker collects it, and would keep them."""

    async def settled(group_id: str) -> None:
        return

    class Groups:
        def __getattr__(self, name: str) -> Any:
            return {
                "get": lambda group_id: None,
                "offsets": lambda group_id: None,
                "check_fetch": lambda *asked: 0,
                "leave": lambda group_id, leaving: [0] * len(leaving),
                "settled": settled,
            }[name]

    def partition(topic: str, index: int) -> Any:
        raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    broker: Any = SimpleNamespace(
        partition=partition,
        topics=SimpleNamespace(get=lambda name: None),
        groups=Groups(),
        transactions=SimpleNamespace(get=lambda name: None),
        users=SimpleNamespace(of=lambda name: []),
        config=SimpleNamespace(node_id=1, advertise=None),
    )
    connection: Any = SimpleNamespace(
        dialled=("here", 1),
        session=Session(ListenerConfig(name="default")),
        authorizer=SimpleNamespace(allows=lambda *asked: True),
    )
    answer = APIS[key].handle(broker, ApiRequest(key, version, "", SimpleNamespace(**fields()), 0, connection))
    assert isinstance(answer, Awaitable)
    assert await turns_of_another(answer) > 3


def test_answers_are_counted_with_all_that_is_in_their_lists() -> None:
    assert not Codecs.is_large_answer({"topics": [{"name": "a", "partitions": [{"index": 1}] * 900}], "error": 0})
    assert Codecs.is_large_answer({"topics": [{"name": "a", "partitions": [{"index": 1}] * 1100}], "error": 0})
    assert Codecs.is_large_answer({"groups": [{"topics": [{"partitions": [{"index": 1}] * 300}] * 2}] * 2})
    with pytest.raises(Malformed, match="ask for at most"):
        Codecs.check_answer({"topics": [{"partitions": [0] * 10_000}] * 200})
    Codecs.check_answer({"topics": [{"partitions": [0] * 10_000}] * 90})


def test_a_large_answer_is_not_counted_to_its_end_on_the_loop() -> None:
    looked_at = 0

    class Row(dict[str, Any]):
        def values(self) -> Any:
            nonlocal looked_at
            looked_at += 1
            return super().values()

    assert Codecs.is_large_answer({"topics": [Row(partitions=[0]) for _ in range(5000)], "more": [Row(partitions=[0])]})
    assert looked_at <= 1002


async def test_what_a_request_names_twice_is_merged_and_the_last_counts() -> None:
    assert (await merged([("a", [(1, "x"), (2, "y")]), ("b", []), ("a", [(1, "z")])])) == {
        "a": {1: "z", 2: "y"},
        "b": {},
    }
