"""The longest turn of the loop: every API with the longest lists that the limits allow, and coordinators with large
states. What is measured is processor time of the loop's thread (`tests/support/turns.py`).

The requests are those of the table of permissions (`tests/support/access_cases.py`), so a new API is here as soon as it
is there.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

import fencepost
from fencepost.server.api import APIS
from fencepost.server.garbage import keep_collections_short
from fencepost.wire import messages
from tests.support.access_cases import CASES, Case, Names
from tests.support.attacks import MIB, Row, peak_memory, remember
from tests.support.raw import FETCH, PRODUCE, ConnectionEnded, RawClient
from tests.support.turns import LoopWatch

pytestmark = pytest.mark.hostile

MOST_ELEMENTS = 50_000
LONGEST_TURN = 0.1
"""Seconds, demanded in the long form only: half of what a bystander may wait (`tests/support/attacks.py`)."""
ANY_MACHINE = 0.5
NO_LISTS = {12, 17, 18, 22, 25, 26, 29, 36, 46, 60}
"""APIs whose requests have no lists."""
ELSEWHERE = {PRODUCE, FETCH, 10_000}
"""Their long lists are attacks of their own."""
NAMES = Names("t", uuid.UUID(int=7), "g", "x")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[fencepost.Server, LoopWatch]]:
    with fencepost.Server(tmp_path_factory.mktemp("turns")) as server:
        with RawClient(server.address) as client:
            client.create_topic("t", 1_000)
        before = list(gc.callbacks)
        keep_collections_short()  # as in a server's process
        try:
            with LoopWatch(server) as watch:
                yield server, watch
        finally:
            gc.callbacks[:] = before
            gc.unfreeze()


def varied(value: Any, number: int, name: str = "") -> Any:
    """The value of a field, another one for each number."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return f"{value}{number}"
    if isinstance(value, int):
        return number % 100 if "partition" in name or "index" in name else value
    if isinstance(value, Mapping):
        return {key: varied(each, number, key) for key, each in value.items()}
    return value


def lists_in(fields: Mapping[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all lists with an element."""
    for name, value in fields.items():
        if isinstance(value, list | tuple) and value:
            yield (*path, name)
            if isinstance(value[0], Mapping):
                yield from lists_in(value[0], (*path, name, 0))


def widened(fields: Any, path: tuple[Any, ...], count: int) -> Any:
    """The fields, with so many elements in the list at this place."""
    if not path:
        return [varied(fields[0], number, "partition_index") for number in range(count)]
    changed = list(fields) if isinstance(fields, list | tuple) else dict(fields)
    changed[path[0]] = widened(fields[path[0]], path[1:], count)
    return changed


def largest(case: Case, path: tuple[Any, ...], most: int) -> tuple[int, dict[str, Any]]:
    """The longest list in a request of less than a mebibyte."""
    fields = case.fields(NAMES)
    size = len(messages.encode_request(case.key, case.version, widened(fields, path, 100)))
    count = min(most, 75 * MIB // size)  # longer numbers follow
    return count, widened(fields, path, count)


EMPTY_THERE: dict[str, Case] = {
    "SyncGroup": Case(
        14, 3,
        lambda n: {
            "group_id": n.group, "generation_id": 1, "member_id": "m", "group_instance_id": None,
            "assignments": [{"member_id": "m", "assignment": b""}],
        },
        (), (),
    ),
    "ListGroups": Case(16, 5, lambda n: {"states_filter": ["Empty"], "types_filter": ["classic"]}, (), ()),
    "DescribeLogDirs": Case(35, 4, lambda n: {"topics": [{"topic": n.topic, "partitions": [0]}]}, (), ()),
    "DescribeClientQuotas": Case(
        48, 1,
        lambda n: {"components": [{"entity_type": "user", "match_type": 0, "match": "u"}], "strict": False},
        (), (),
    ),
    "ListTransactions": Case(66, 0, lambda n: {"state_filters": ["Ongoing"], "producer_id_filters": [1]}, (), ()),
    "DescribeOwners": Case(10_001, 1, lambda n: {"group": None, "resources": ["r"]}, (), ()),
}  # fmt: skip
"""Requests whose lists are empty or null in the table of permissions."""

WIDE = {
    f"{name}: {'.'.join(str(each) for each in path if each != 0)}": (case, path)
    for name, case in {**CASES, **EMPTY_THERE}.items()
    if case.key not in ELSEWHERE
    for path in lists_in(case.fields(NAMES))
}


def test_every_api_with_a_list_is_walked() -> None:
    assert {case.key for case, _ in WIDE.values()} == set(APIS) - NO_LISTS - ELSEWHERE


@pytest.mark.parametrize("name", list(WIDE))
def test_the_longest_list_of_every_api_takes_short_turns(
    watched: tuple[fencepost.Server, LoopWatch], request: pytest.FixtureRequest, name: str
) -> None:
    server, watch = watched
    case, path = WIDE[name]
    long = request.config.getoption("long_attacks")
    count, fields = largest(case, path, MOST_ELEMENTS if long else 2_000)
    with RawClient(server.address, timeout=20) as client:
        watch.reset()
        with suppress(ConnectionEnded, OSError):
            client.call(case.key, case.version, **fields)
        turn = watch.settle()
    remember(request.node, [Row(f"turn of {name} x {count:,}", turn, 1, turn, turn, peak_memory(server.pid))])
    assert turn < (LONGEST_TURN if long else ANY_MACHINE), f"a turn of {turn:.3f} s\n{watch.stack}"
