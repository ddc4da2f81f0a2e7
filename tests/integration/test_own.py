"""Own over the wire: the sentences of the source document, each a test, and the fence (OWN-1 to OWN-9)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.server.api import k00_produce
from fencepost.server.net.turns import ConnectionTurn
from tests.support.batches import batch
from tests.support.failing_files import GatedFiles
from tests.support.raw import ConnectionEnded, RawClient

pytestmark = pytest.mark.integration

OWN = 10_000
DESCRIBE_OWNERS = 10_001


def own(
    client: RawClient, *wanted: tuple[str, int] | tuple[str, int, int], group: str = "g", wait_ms: int = 0, **more: Any
) -> Any:
    resources = [
        {"name": want[0], "generation": want[1], **({"after_token": want[2]} if len(want) == 3 else {})}
        for want in wanted
    ]
    return client.call(OWN, 0, group=group, wait_ms=wait_ms, resources=resources, **more)


def generations(answer: Any) -> list[int]:
    assert answer.error_code == ErrorCode.NONE, answer
    return [resource.generation for resource in answer.resources]


def is_severed(client: RawClient) -> bool:
    try:
        return client.is_closed_by_server()
    except ConnectionEnded:
        return True


@pytest.fixture
def connect(fencepost_server: fencepost.Server) -> Iterator[Any]:
    opened: list[RawClient] = []

    def start() -> RawClient:
        opened.append(RawClient(fencepost_server.address))
        return opened[-1]

    yield start
    for client in opened:
        client.close()


def test_version_1_has_an_optional_group_and_answers_with_it(connect: Any, name: str) -> None:
    """OWN-1: the document's fields. What was claimed by one version is seen, and taken over, by the other."""
    answer = connect().call(OWN, 1, group=None, wait_ms=0, resources=[{"resource": name, "generation": 5}])
    assert (answer.error_code, answer.group) == (ErrorCode.NONE, "default")
    assert [(row.resource, row.generation) for row in answer.resources] == [(name, 1)]
    older = own(connect(), (name, 0), group="default")
    assert generations(older) == [1]
    refused = connect().call(OWN, 1, group="", wait_ms=0, resources=[{"resource": name, "generation": 1}])
    assert refused.error_code == ErrorCode.INVALID_REQUEST


def test_without_an_owner_the_requesting_connection_becomes_it_with_generation_1(connect: Any, name: str) -> None:
    """OWN-3."""
    assert generations(own(connect(), (name, 5))) == [1]


def test_if_the_existing_owner_has_a_higher_generation_the_request_fails(connect: Any, name: str) -> None:
    """OWN-4."""
    a, b, c = connect(), connect(), connect()
    own(a, (name, 1))
    assert generations(own(b, (name, 1))) == [2]
    answer = own(c, (name, 1))
    assert answer.error_code == ErrorCode.ILLEGAL_GENERATION
    assert [(r.name, r.error_code, r.generation) for r in answer.resources] == [(name, ErrorCode.ILLEGAL_GENERATION, 2)]
    assert generations(own(b, (name, 1))) == [2]  # still there, and told what it has


def test_an_owner_with_an_equal_or_lower_generation_has_its_connection_severed(connect: Any, name: str) -> None:
    """OWN-2, OWN-5."""
    a, b, c = connect(), connect(), connect()
    own(a, (name, 1))
    assert generations(own(b, (name, 1))) == [2]
    assert is_severed(a)
    assert generations(own(c, (name, 9))) == [9]
    assert is_severed(b)


def test_generation_0_always_succeeds_and_resets(connect: Any, name: str) -> None:
    """OWN-6."""
    a, b = connect(), connect()
    own(a, (name, 1))
    assert generations(own(b, (name, 0))) == [1]
    assert is_severed(a)


def test_the_last_generation_is_refused_until_a_reset(connect: Any, name: str) -> None:
    """OWN-5, OWN-6."""
    last = 2**31 - 1
    a, b, c = connect(), connect(), connect()
    own(a, (name, 1))
    assert generations(own(b, (name, last))) == [last]
    assert own(c, (name, last)).error_code == ErrorCode.ILLEGAL_GENERATION
    assert generations(own(c, (name, 0))) == [1]


def test_a_claim_of_several_is_all_or_nothing(connect: Any, name: str) -> None:
    """OWN-7."""
    a, b, c = connect(), connect(), connect()
    own(a, (f"{name}-x", 1))
    own(b, (f"{name}-y", 1))
    own(connect(), (f"{name}-y", 7))
    answer = own(c, (f"{name}-x", 1), (f"{name}-y", 1), (f"{name}-z", 1))
    assert answer.error_code == ErrorCode.ILLEGAL_GENERATION
    assert [(r.name, r.generation) for r in answer.resources] == [(f"{name}-y", 7)]
    assert generations(own(a, (f"{name}-x", 1))) == [1]  # not severed


def test_a_connection_that_ends_owns_nothing_any_more(connect: Any, name: str) -> None:
    """OWN-2, OWN-8."""
    a, b = connect(), connect()
    own(a, (name, 1))
    a.close()
    assert generations(own(b, (name, 1), wait_ms=30_000)) == [1]


def test_tokens_rise_and_a_claim_may_demand_that_nobody_was_there_since(connect: Any, name: str) -> None:
    a, b, c = connect(), connect(), connect()
    first = own(a, (name, 1)).resources[0].token
    a.close()
    own(b, (name, 1), wait_ms=10_000)
    newest = own(b, (name, 1)).resources[0].token
    assert newest > first
    b.close()
    refused = own(c, (name, 0, first))
    assert refused.error_code == ErrorCode.ILLEGAL_GENERATION
    assert refused.resources[0].token == newest
    assert own(c, (name, 0, newest)).error_code == ErrorCode.NONE


def test_a_waiting_claim_is_granted_when_all_is_free_in_order_of_arrival(connect: Any, name: str) -> None:
    a, b, c = connect(), connect(), connect()
    own(a, (name, 1))
    b.send(OWN, 0, group="g", wait_ms=30_000, resources=[{"name": name, "generation": 1}])
    own(connect(), (f"{name}-other", 1))  # a round trip: b's claim is in line before c's
    c.send(OWN, 0, group="g", wait_ms=30_000, resources=[{"name": name, "generation": 1}])
    assert not b.has_answer()
    a.call(OWN, 0, group="g", resources=[], release=[name])
    assert generations(b.receive()[1]) == [1]
    assert not c.has_answer()
    b.close()
    assert generations(c.receive()[1]) == [1]


def test_a_waiting_claim_severs_nobody_and_times_out(connect: Any, name: str) -> None:
    a, b = connect(), connect()
    own(a, (name, 1))
    assert own(b, (name, 99), wait_ms=20).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert generations(own(a, (name, 1))) == [1]


def test_an_owner_that_is_silent_longer_than_its_session_is_severed(connect: Any, name: str) -> None:
    """OWN-8, by a session."""
    a, b = connect(), connect()
    own(a, (name, 1), session_ms=100)
    assert generations(own(b, (name, 1), wait_ms=30_000)) == [1]
    assert is_severed(a)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resources": [{"name": "x", "generation": -1}]}, "negative"),
        ({"resources": [{"name": "", "generation": 1}]}, "characters"),
        ({"resources": [{"name": "x" * 1001, "generation": 1}]}, "characters"),
        ({"resources": [{"name": "x", "generation": 1}] * 2}, "more than once"),
        ({"resources": [], "group": ""}, "group"),
        ({"resources": [], "wait_ms": -1}, "negative"),
        ({"resources": [{"name": str(i), "generation": 1} for i in range(20_001)]}, "at most"),
    ],
)
def test_bad_input_is_an_invalid_request_with_the_reason(connect: Any, fields: dict[str, Any], words: str) -> None:
    answer = connect().call(OWN, 0, **{"group": "bad", "wait_ms": 0, **fields})
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert words in answer.error_message


def test_a_guarded_topic_takes_writes_from_the_owner_alone(connect: Any, name: str) -> None:
    """OWN-9."""
    a, b = connect(), connect()
    a.create_topic(name, configs={"fencepost.writer.group": "writers"})
    assert a.produce(name, batch([b"x"])).error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    own(a, (f"{name}-0", 1), group="writers")
    assert a.produce(name, batch([b"a"])).error is ErrorCode.NONE
    assert b.produce(name, batch([b"b"])).error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    own(b, (f"{name}-0", 1), group="writers")
    assert b.produce(name, batch([b"b"])).error is ErrorCode.NONE
    assert b.fetch(name, 0).values == [b"a", b"b"]


def test_a_guarded_topic_is_read_by_the_owner_alone(connect: Any, name: str) -> None:
    """OWN-9."""
    a = connect()
    a.create_topic(name, configs={"fencepost.reader.group": "readers"})
    a.produce(name, batch([b"x"]))
    assert a.fetch(name, 0).error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    own(a, (f"{name}-0", 1), group="readers")
    assert a.fetch(name, 0).values == [b"x"]


class Gated(NamedTuple):
    """The owner, who comes after it, and somebody who looks; a topic `t`, whose syncs the test can hold up."""

    old: RawClient
    new: RawClient
    third: RawClient
    files: GatedFiles


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    files = GatedFiles()
    with (
        fencepost.Server(tmp_path, sync="always", files=files) as server,
        RawClient(server.address) as old,
        RawClient(server.address) as new,
        RawClient(server.address) as third,
    ):
        old.create_topic("t")
        yield Gated(old, new, third, files)
        files.gate.set()


def test_the_new_owner_is_answered_once_the_old_owners_accepted_writes_are_durable(gated: Gated) -> None:
    old, new, third, files = gated
    own(old, ("t-0", 1))
    pid = old.new_pid()
    old.produce("t", batch([b"first"], pid=pid, epoch=0, sequence=0))
    files.gate.clear()
    old.send_produce("t", batch([b"accepted"], pid=pid, epoch=0, sequence=1))
    while last_sequence(third, "t") != 1:  # until it is appended; its sync hangs
        pass
    new.send(OWN, 0, group="g", wait_ms=0, resources=[{"name": "t-0", "generation": 1}])
    assert third.end_offset("t") == 1
    assert not new.has_answer()
    files.gate.set()
    assert generations(new.receive()[1]) == [2]
    assert new.fetch("t", 0).values == [b"first", b"accepted"]


def test_the_next_owner_waits_for_the_records_of_one_that_hung_up_too(gated: Gated) -> None:
    """OWN-9: it makes no difference how the old one went."""
    old, new, third, files = gated
    token = own(old, ("t-0", 1)).resources[0].token
    pid = old.new_pid()
    old.produce("t", batch([b"first"], pid=pid, epoch=0, sequence=0))
    new.send(OWN, 0, group="g", wait_ms=60_000, resources=[{"name": "t-0", "generation": 0}])
    files.gate.clear()
    old.send_produce("t", batch([b"accepted"], pid=pid, epoch=0, sequence=1))
    while last_sequence(third, "t") != 1:  # until it is appended; its sync hangs
        pass
    old.close()
    while newest_token(third, "t-0") == token:  # until it is granted to the next in line
        pass
    third.create_topic("other")  # stored behind the new token, so that nothing but the sync is waited for
    third.send(DESCRIBE_OWNERS, 0, group=None)
    assert not new.has_answer()
    assert not third.has_answer()
    files.gate.set()
    assert generations(new.receive()[1]) == [1]
    assert new.fetch("t", 0).values == [b"first", b"accepted"]
    # Who is not named any more, of them nothing comes to light later.
    assert [row.token for row in third.receive()[1].owners] == [token + 1]


def newest_token(client: RawClient, name: str) -> int:
    """Asked by a claim that is refused whatever happens."""
    token: int = own(client, (name, 0, 2**60)).resources[0].token
    return token


@pytest.mark.parametrize("sync", ["always", "os"])
def test_the_next_owner_can_read_what_a_large_request_has_written_so_far(
    tmp_path: Path, sync: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWN-9: also if the claim has its turn between two pieces of the request, whatever the resource is called."""
    written, go_on = threading.Event(), threading.Event()

    async def pause(seconds: float) -> None:
        written.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)

    monkeypatch.setattr(ConnectionTurn, "is_long", lambda turn: True)  # after each batch
    monkeypatch.setattr(k00_produce, "asyncio", SimpleNamespace(sleep=pause))
    with (
        fencepost.Server(tmp_path, sync=sync) as server,
        RawClient(server.address) as old,
        RawClient(server.address) as new,
    ):
        old.create_topic("t", partitions=100)
        own(old, ("a job", 1))
        old.send_produce_many({"t": {partition: batch([b"x"]) for partition in range(100)}})
        assert written.wait(30)
        assert generations(own(new, ("a job", 1))) == [2]
        ends = [new.end_offset("t", partition=partition) for partition in (0, 1)]
        go_on.set()
        assert is_severed(old)
        assert ends == [1, 0] == [new.end_offset("t", partition=partition) for partition in (0, 1)]


def test_a_claimant_that_hangs_up_while_it_is_waited_for_a_sync_holds_up_nobody(gated: Gated) -> None:
    old, new, third, files = gated
    token = own(old, ("t-0", 1)).resources[0].token
    pid = old.new_pid()
    old.produce("t", batch([b"first"], pid=pid, epoch=0, sequence=0))
    files.gate.clear()
    old.send_produce("t", batch([b"accepted"], pid=pid, epoch=0, sequence=1))
    while last_sequence(third, "t") != 1:
        pass
    new.send(OWN, 0, group="g", wait_ms=0, resources=[{"name": "t-0", "generation": 1}])
    while newest_token(third, "t-0") == token:
        pass
    new.close()
    files.gate.set()
    assert generations(own(third, ("t-0", 0))) == [1]
    third.produce("t", batch([b"third"], pid=third.new_pid(), epoch=0, sequence=0))
    assert third.fetch("t", 0).values == [b"first", b"accepted", b"third"]


def test_a_session_begins_when_the_claim_is_granted_and_not_while_it_waits(connect: Any, name: str) -> None:
    a, b, c = connect(), connect(), connect()
    own(a, (name, 1))
    b.send(OWN, 0, group="g", wait_ms=60_000, resources=[{"name": name, "generation": 1}], session_ms=100)
    c.send(OWN, 0, group="g", wait_ms=60_000, resources=[{"name": name, "generation": 1}])
    assert own(connect(), (name, 1), wait_ms=300).error_code == ErrorCode.REQUEST_TIMED_OUT
    a.close()
    assert generations(b.receive()[1]) == [1]  # it was silent for longer than that, and is still in line
    assert generations(c.receive()[1]) == [1]  # silent again, as an owner: severed
    assert is_severed(b)


def test_a_refused_claim_gives_its_owner_no_session(connect: Any, name: str) -> None:
    """OWN-7: nothing changes, so the owner may be silent for as long as before."""
    a, b, other = connect(), connect(), f"{name}-other"
    own(a, (name, 1))
    own(connect(), (other, 1))
    own(b, (other, 5))
    assert own(a, (other, 1), session_ms=50).error_code == ErrorCode.ILLEGAL_GENERATION
    assert own(b, (name, 1), wait_ms=300).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert generations(own(a, (name, 1))) == [1]


def last_sequence(client: RawClient, topic: str) -> int:
    described = client.call(61, 0, topics=[{"name": topic, "partition_indexes": [0]}])
    [producer] = described.topics[0].partitions[0].active_producers
    sequence: int = producer.last_sequence
    return sequence


def test_tokens_rise_through_a_killed_server(tmp_path: Path, name: str) -> None:
    seen: list[int] = []
    for _ in range(3):
        server = fencepost.Server(tmp_path, sync="always", process=True).start()
        with RawClient(server.address) as client:
            # The newest of all may be another resource's than the one that is asked for next.
            seen += [own(client, (each, 0)).resources[0].token for each in (name, f"{name}-else", name, f"{name}-else")]
            if len(seen) > 4:
                assert own(client, (name, 1, seen[-2])).error_code == ErrorCode.NONE
        server.kill()
    assert seen == sorted(set(seen))
