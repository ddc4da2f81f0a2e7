"""The longest turn of the loop: every API with the longest lists that the limits allow, and coordinators with large
states. What is measured is processor time of the loop's thread (`tests/support/loop_turns.py`).

The requests are those of the table of permissions (`tests/support/access_cases.py`), so a new API is here as soon as it
is there.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.server.api import APIS
from fencepost.server.process.tuning import keep_collections_short
from fencepost.wire import messages
from tests.support.access_cases import CASES, Case, Names
from tests.support.attacks import MIB, TURN, Row, peak_memory, remember
from tests.support.batches import batch
from tests.support.loop_turns import LoopWatch
from tests.support.raw import FETCH, PRODUCE, ConnectionEnded, RawClient

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
    remember(request.node, [Row(f"{TURN}{name} x {count:,}", turn, 1, turn, turn, peak_memory(server.pid))])
    assert turn < (LONGEST_TURN if long else ANY_MACHINE), f"a turn of {turn:.3f} s\n{watch.stack}"


def test_partitions_that_many_clients_open_at_once_take_short_turns(
    watched: tuple[fencepost.Server, LoopWatch], request: pytest.FixtureRequest
) -> None:
    """The first batch of each makes its files, and hundreds of requests are ready at the same moment."""
    server, watch = watched
    long = request.config.getoption("long_attacks")
    count = 400 if long else 40
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.address, timeout=100)) for _ in range(count)]
        clients[0].create_topic("opened", 10 * count)
        watch.reset()
        for number, client in enumerate(clients):
            client.send_produce_many({"opened": dict.fromkeys(range(10 * number, 10 * number + 10), batch([b"x"]))})
        for client in clients:
            client.receive()
        turn = watch.settle()
    name = f"{TURN}{count} connections that open partitions"
    remember(request.node, [Row(name, turn, 1, turn, turn, peak_memory(server.pid))])
    assert turn < (LONGEST_TURN if long else ANY_MACHINE), f"a turn of {turn:.3f} s\n{watch.stack}"


def codes_in(answer: Any) -> Iterator[int]:
    """All error codes of an answer."""
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, list | tuple) else [value]:
            yield from codes_in(each)


class Watched:
    """Runs the steps of a coordinator's life, and notes the longest turn of each."""

    def __init__(self, server: fencepost.Server, watch: LoopWatch) -> None:
        self.client = RawClient(server.address, timeout=100)
        self.rows: list[Row] = []
        self._server, self._watch = server, watch
        self.stacks: dict[str, str] = {}

    def step(self, name: str, key: int, version: int, **fields: Any) -> Any:
        self._watch.reset()
        answer = self.client.call(key, version, **fields)
        turn = self._watch.settle()
        self.rows.append(Row(f"turn of {name}", turn, 1, turn, turn, peak_memory(self._server.pid)))
        self.stacks[name] = self._watch.stack
        assert set(codes_in(answer)) == {ErrorCode.NONE}, name
        return answer

    def check(self, request: pytest.FixtureRequest) -> None:
        self.client.close()
        remember(request.node, self.rows)
        worst = max(self.rows, key=lambda row: row.longest)
        limit = LONGEST_TURN if request.config.getoption("long_attacks") else ANY_MACHINE
        name = worst.attack.removeprefix("turn of ")
        assert worst.longest < limit, f"{name}: a turn of {worst.longest:.3f} s\n{self.stacks[name]}"


@pytest.fixture
def life(
    watched: tuple[fencepost.Server, LoopWatch], request: pytest.FixtureRequest
) -> Iterator[tuple[Watched, Callable[[int, int], int]]]:
    long = request.config.getoption("long_attacks")
    steps = Watched(*watched)
    yield steps, lambda short, full: full if long else short
    steps.check(request)


def test_a_consumer_group_of_very_many_partitions_takes_short_turns(
    life: tuple[Watched, Callable[[int, int], int]],
) -> None:
    steps, size = life
    count = size(5_000, 50_000)
    steps.client.create_topic("wide", count)
    fields: dict[str, Any] = dict.fromkeys(("instance_id", "rack_id", "server_assignor", "subscribed_topic_regex"))
    fields |= {"group_id": "wide", "rebalance_timeout": 60_000, "subscribed_topic_names": ["wide"]}
    for member in ("a", "b"):
        joined: dict[str, Any] = {**fields, "member_id": member, "member_epoch": 0, "topic_partitions": []}
        steps.step(f"member {member} that joins, {count:,} partitions", 68, 1, **joined)
    steps.step(
        "ConsumerGroupDescribe of it", 69, 0, group_ids=["wide"], include_authorized_operations=False
    )  # fmt: skip
    left = {**fields, "member_id": "a", "member_epoch": -1, "topic_partitions": None, "subscribed_topic_names": None}
    steps.step("a member that leaves it", 68, 1, **{**left, "rebalance_timeout": -1})


def test_a_transaction_of_very_many_partitions_and_offsets_takes_short_turns(
    life: tuple[Watched, Callable[[int, int], int]],
) -> None:
    steps, size = life
    count, offsets = size(200, 2_000), size(2_000, 30_000)
    steps.client.create_topic("transacted", count)
    steps.client.create_topic("consumed", offsets)
    made = steps.client.call(22, 1, transactional_id="large", transaction_timeout=60_000)
    who = {"transactional_id": "large", "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    added = {f"v3_and_below_{name}": value for name, value in who.items()}
    topics = [{"name": "transacted", "partitions": list(range(count))}]
    steps.step(f"AddPartitionsToTxn of {count:,}", 24, 3, **added, v3_and_below_topics=topics)
    steps.client.call(25, 2, **who, group_id="large")
    rows = [{"partition_index": n, "committed_offset": 1, "committed_metadata": ""} for n in range(offsets)]
    staged = {**who, "group_id": "large", "topics": [{"name": "consumed", "partitions": rows}]}
    steps.step(f"TxnOffsetCommit of {offsets:,}", 28, 1, **staged)
    steps.step("EndTxn of all of it", 26, 2, **who, committed=True)
    steps.step("OffsetFetch of all of it", 9, 5, group_id="large", topics=None)
    steps.step("DeleteGroups of all of it", 42, 1, groups_names=["large"])


def test_owners_of_all_resources_take_short_turns(life: tuple[Watched, Callable[[int, int], int]]) -> None:
    steps, size = life
    names = [f"r{number}" for number in range(size(2_000, 20_000))]
    claim = {"group": "turns", "wait_ms": 0, "session_ms": 0, "release": []}
    rows = [{"resource": name, "generation": 0} for name in names]
    steps.step(f"Own of {len(names):,}", 10_000, 1, **claim, resources=rows)
    steps.step("DescribeOwners of all of them", 10_001, 1, group=None, resources=names)
    steps.step("Own that releases all of them", 10_000, 1, **{**claim, "release": names}, resources=[])
