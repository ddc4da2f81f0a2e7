"""The longest turn of the loop: every API with the longest lists that the limits allow, and coordinators with large
states. What is measured is processor time of the loop's thread (`tests/support/loop_turns.py`).

The requests are those of the table of permissions (`tests/support/access_cases.py`), so a new API is here as soon as it
is there.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
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
    """A server that knows rights, so that they can be many, and gives all of them to everybody."""
    with fencepost.Server(
        tmp_path_factory.mktemp("turns"), authorization_enabled=True, authorization_allow_everyone_if_no_acl=True
    ) as server:
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
    remember(request.node, [Row(f"{TURN}{name} x {count:,}", turn, 1, turn, turn, peak_memory(server.pid), turn)])
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
    remember(request.node, [Row(name, turn, 1, turn, turn, peak_memory(server.pid), turn)])
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
        self.address = server.address
        self.client = RawClient(server.address, timeout=100)
        self.rows: list[Row] = []
        self._server, self._watch = server, watch
        self.stacks: dict[str, str] = {}

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        self._watch.reset()
        yield
        turn = self._watch.settle()
        self.rows.append(Row(f"{TURN}{name}", turn, 1, turn, turn, peak_memory(self._server.pid), turn))
        self.stacks[name] = self._watch.stack

    def step(self, name: str, key: int, version: int, **fields: Any) -> Any:
        with self.watching(name):
            answer = self.client.call(key, version, **fields)
        assert set(codes_in(answer)) == {ErrorCode.NONE}, name
        return answer

    def check(self, request: pytest.FixtureRequest) -> None:
        self.client.close()
        remember(request.node, self.rows)
        worst = max(self.rows, key=lambda row: row.longest)
        limit = LONGEST_TURN if request.config.getoption("long_attacks") else ANY_MACHINE
        name = worst.attack.removeprefix(TURN)
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


def test_groups_up_to_the_limit_take_short_turns(life: tuple[Watched, Callable[[int, int], int]]) -> None:
    steps, size = life
    names = [f"group-{number}" for number in range(size(500, 10_000))]
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    committed = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": [{"name": "t", "partitions": [row]}]}
    for name in names:
        steps.client.send(8, 8, group_id=name, **committed)
    for _ in names:
        steps.client.receive()
    steps.step(f"ListGroups of {len(names):,}", 16, 5, states_filter=[], types_filter=[])
    steps.step("DescribeGroups of all of them", 15, 5, groups=names, include_authorized_operations=True)
    asked = [{"group_id": name, "topics": None} for name in names]
    steps.step("OffsetFetch of all of them", 9, 8, groups=asked, require_stable=True)
    steps.step("DeleteGroups of all of them", 42, 1, groups_names=names)


def test_a_classic_group_of_very_many_members_takes_short_turns(
    life: tuple[Watched, Callable[[int, int], int]],
) -> None:
    steps, size = life
    count = size(100, 2_000)
    joining = {"session_timeout": 60_000, "rebalance_timeout": 60_000, "group_instance_id": None}
    protocols = [{"name": f"p{number}", "metadata": bytes(100)} for number in range(20)]
    fields = {"group_id": "crowded", "protocol_type": "consumer", "protocols": protocols, **joining}
    first = {**fields, "member_id": ""}
    leader = steps.client.call(11, 5, **{**first, "member_id": steps.client.call(11, 5, **first).member_id})
    assert leader.error_code == ErrorCode.NONE
    for _ in range(count - 1):
        steps.client.send(11, 5, **first)
    ids = [leader.member_id, *(steps.client.receive()[1].member_id for _ in range(count - 1))]
    with ExitStack() as stack:
        members = [stack.enter_context(RawClient(steps.address, timeout=100)) for _ in ids]
        with steps.watching(f"JoinGroup of {count:,} members"):
            for member, client in reversed(
                list(zip(ids, members, strict=True))
            ):  # the leader's join begins the rebalance
                client.send(11, 5, member_id=member, **fields)
            answers = [client.receive()[1] for client in members]
        assert {(answer.error_code, answer.generation_id) for answer in answers} == {(0, leader.generation_id + 1)}
        with steps.watching("SyncGroup of all of them"):
            for member, client in zip(ids, members, strict=True):
                given = [{"member_id": each, "assignment": bytes(100)} for each in ids]
                client.send(
                    14, 3, group_id="crowded", generation_id=leader.generation_id + 1, member_id=member,
                    group_instance_id=None, assignments=given if member == leader.member_id else [],
                )  # fmt: skip
            assert {client.receive()[1].error_code for client in members} == {ErrorCode.NONE}
        steps.step("DescribeGroups of it", 15, 5, groups=["crowded"], include_authorized_operations=False)
        gone = [{"member_id": member, "group_instance_id": None} for member in ids]
        steps.step("LeaveGroup of all of them", 13, 4, group_id="crowded", members=gone)


def test_topics_up_to_the_limit_take_short_turns(life: tuple[Watched, Callable[[int, int], int]]) -> None:
    steps, size = life
    names = [f"many-{number}" for number in range(size(500, 9_000))]
    wanted = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} for name in names
    ]
    for validate_only in (True, False):
        what = "CreateTopics, only validated" if validate_only else f"CreateTopics of {len(names):,}"
        steps.step(what, 19, 5, topics=wanted, timeout=60_000, validate_only=validate_only)
    operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    steps.step("Metadata of all of them", 3, 9, topics=None, allow_auto_topic_creation=False, **operations)
    resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names]
    told = {"include_synonyms": True, "include_documentation": True}
    steps.step("DescribeConfigs of all of them", 32, 4, resources=resources[: size(500, 2_000)], **told)
    changes = [{"name": "retention.ms", "value": "1000000", "config_operation": 0}]
    altered = [{"resource_type": 2, "resource_name": name, "configs": changes} for name in names]
    steps.step("IncrementalAlterConfigs of all of them", 44, 1, resources=altered, validate_only=False)
    parts = [{"name": name, "count": 3, "assignments": None} for name in names]
    steps.step("CreatePartitions of all of them", 37, 3, topics=parts, timeout=60_000, validate_only=False)
    ends = [
        {"name": name, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
        for name in names
    ]
    steps.step("ListOffsets of all of them", 2, 5, replica_id=-1, isolation_level=1, topics=ends)
    deleted = [{"name": name, "partitions": [{"partition_index": 0, "offset": -1}]} for name in names]
    steps.step("DeleteRecords of all of them", 21, 2, topics=deleted, timeout=60_000)
    steps.step("DeleteTopics of all of them", 20, 5, topic_names=names, timeout=60_000)


def test_rights_quotas_and_users_up_to_the_limit_take_short_turns(
    life: tuple[Watched, Callable[[int, int], int]],
) -> None:
    steps, size = life
    acl = {
        "resource_type": 2, "resource_pattern_type": 3, "principal": "User:u", "host": "*", "operation": 3,
        "permission_type": 3,
    }  # fmt: skip
    rights = [{**acl, "resource_name": f"t{number}"} for number in range(size(500, 7_000))]
    for number in range(size(1, 10)):
        some = [{**each, "principal": f"User:u{number}"} for each in rights]
        steps.step(f"CreateAcls of {len(rights):,} more", 30, 2, creations=some)
    anything = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    steps.step("DescribeAcls of all of them", 29, 2, **anything)
    steps.step("DeleteAcls of all of them", 31, 2, filters=[anything])

    limits = [
        {
            "entity": [{"entity_type": "user", "entity_name": f"u{number}"}],
            "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
        }
        for number in range(size(500, 7_000))
    ]
    steps.step(f"AlterClientQuotas of {len(limits):,}", 49, 1, entries=limits, validate_only=False)
    users = [{"entity_type": "user", "match_type": 2, "match": None}]
    steps.step("DescribeClientQuotas of all of them", 48, 1, components=users, strict=False)
    for limit in limits:
        limit["ops"] = [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]
    steps.step("AlterClientQuotas that removes all of them", 49, 1, entries=limits, validate_only=False)

    names = [f"u{number}" for number in range(size(500, 7_000))]
    passwords = [
        {"name": name, "mechanism": 1, "iterations": 4096, "salt": bytes(16), "salted_password": bytes(32)}
        for name in names
    ]
    steps.step(f"AlterUserScramCredentials of {len(names):,}", 51, 0, deletions=[], upsertions=passwords)
    steps.step("DescribeUserScramCredentials of all of them", 50, 0, users=None)
    gone = [{"name": name, "mechanism": 1} for name in names]
    steps.step("AlterUserScramCredentials that deletes all of them", 51, 0, deletions=gone, upsertions=[])


def test_transactional_ids_and_producers_up_to_the_limit_take_short_turns(
    life: tuple[Watched, Callable[[int, int], int]],
) -> None:
    steps, size = life
    names = [f"id-{number}" for number in range(size(200, 9_000))]
    with steps.watching(f"InitProducerId of {len(names):,} names"):
        for name in names:
            steps.client.send(22, 1, transactional_id=name, transaction_timeout=60_000)
        made = [steps.client.receive()[1] for _ in names]
    steps.step("ListTransactions of all of them", 66, 0, state_filters=[], producer_id_filters=[])
    steps.step("DescribeTransactions of all of them", 65, 0, transactional_ids=names)
    with steps.watching("Produce by as many producers"):
        for each in made:
            steps.client.send_produce("t", batch([b"x"], pid=each.producer_id, epoch=0, sequence=0))
        for _ in made:
            steps.client.receive_produced()
    steps.step("DescribeProducers of a partition of theirs", 61, 0, topics=[{"name": "t", "partition_indexes": [0]}])
