"""Own and transactions: once a claim is answered, what the owner before has left open is never committed (OWN-9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

OWN = 10_000
NONE = ErrorCode.NONE
Connect: TypeAlias = Callable[[], TransactionClient]


@pytest.fixture
def connect(fencepost_server: fencepost.Server) -> Iterator[Connect]:
    opened: list[TransactionClient] = []

    def start() -> TransactionClient:
        opened.append(TransactionClient(fencepost_server.address))
        return opened[-1]

    yield start
    for client in opened:
        client.close()


def own(client: TransactionClient, resource: str, *, group: str = "g", generation: int = 1) -> None:
    answer = client.call(OWN, 0, group=group, wait_ms=0, resources=[{"name": resource, "generation": generation}])
    assert answer.error_code == NONE, answer


def release(client: TransactionClient, resource: str, *, group: str = "g") -> None:
    assert client.call(OWN, 0, group=group, resources=[], release=[resource]).error_code == NONE


def begin(client: TransactionClient, name: str, topic: str) -> TransactionalProducer:
    """An open transaction with a record in it."""
    producer = TransactionalProducer.start(client, name)
    assert client.add(producer, {topic: [0]}) == [NONE]
    assert client.write(producer, topic, [b"old"]).error is NONE
    return producer


def write(client: TransactionClient, name: str, topic: str, value: bytes) -> None:
    """A record in a transaction of its own, committed."""
    producer = TransactionalProducer.start(client, name)
    assert client.add(producer, {topic: [0]}) == [NONE]
    assert client.write(producer, topic, [value]).error is NONE
    assert client.end(producer, commit=True) is NONE


def test_an_owners_transaction_open_at_a_server_kill_is_not_committed_after_a_claim(
    tmp_path: Path,
) -> None:
    """OWN-9: the server that comes back does not know who wrote the transaction, only that it was not the claimant."""
    server = fencepost.Server(tmp_path, sync="always", process=True).start()
    with TransactionClient(server.address) as old:
        old.create_topic("t", configs={"fencepost.writer.group": "g"})
        own(old, "t-0")
        producer = begin(old, "old", "t")
        server.kill()
    with (
        fencepost.Server(tmp_path, sync="always") as server,
        TransactionClient(server.address) as new,
        TransactionClient(server.address) as late,
    ):
        own(new, "t-0")
        assert new.stable_offset("t") == new.end_offset("t")  # readers are not held up by it either
        assert late.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
        write(new, "new", "t", b"new")
        assert new.fetch_committed("t").values == [b"new"]


@pytest.mark.parametrize("guard", ["g", ""])
def test_what_is_open_on_a_resource_that_is_given_back_is_aborted(connect: Connect, name: str, guard: str) -> None:
    """OWN-9: whoever gives back keeps its connection, and its transaction is no way to write afterwards."""
    old, new = connect(), connect()
    old.create_topic(name, configs={"fencepost.writer.group": guard} if guard else None)
    own(old, f"{name}-0")
    producer = begin(old, f"{name}-old", name)
    release(old, f"{name}-0")
    own(new, f"{name}-0")
    assert new.stable_offset(name) == new.end_offset(name)
    assert old.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
    write(new, f"{name}-new", name, b"new")
    assert new.fetch_committed(name).values == [b"new"]


def test_what_is_given_back_ends_no_transaction_that_does_not_touch_it(connect: Connect, name: str) -> None:
    """OWN-9 asks for what was open on the resource, and for no more."""
    client = connect()
    client.create_topic(name, partitions=2)
    own(client, f"{name}-0")
    own(client, f"{name}-1")
    producer = begin(client, name, name)
    release(client, f"{name}-1")
    assert client.end(producer, commit=True) is NONE
    assert client.fetch_committed(name).values == [b"old"]


def test_offsets_that_a_former_reader_sent_with_its_transaction_do_not_count(connect: Connect, name: str) -> None:
    """OWN-9: committing how far it read is what the reader of a guarded topic owns."""
    old, new, late = connect(), connect(), connect()
    old.create_topic(name, configs={"fencepost.reader.group": "readers"})
    own(old, f"{name}-0", group="readers")
    producer = TransactionalProducer.start(old, name)
    assert old.add_offsets(producer, name) is NONE
    assert old.commit_offsets(producer, name, {name: {0: 100}}) == [NONE]
    own(new, f"{name}-0", group="readers")
    assert late.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED
    assert new.stable_group_offset(name, name) == -1


def test_who_claims_anew_what_it_owns_goes_on_with_its_transaction(connect: Connect, name: str) -> None:
    """OWN-8: it does not fence itself, not even by a reset."""
    client = connect()
    client.create_topic(name, configs={"fencepost.writer.group": "g"})
    own(client, f"{name}-0")
    producer = begin(client, name, name)
    own(client, f"{name}-0", generation=0)
    assert client.end(producer, commit=True) is NONE
    assert client.fetch_committed(name).values == [b"old"]


def test_a_claim_ends_no_transaction_of_a_non_owner_on_unguarded_topics(connect: Connect, name: str) -> None:
    """Without a guard `own` protects against those who call it, and disturbs nobody else."""
    bystander, owner = connect(), connect()
    bystander.create_topic(name)
    producer = begin(bystander, name, name)
    own(owner, f"{name}-0")
    assert bystander.end(producer, commit=True) is NONE
    assert owner.fetch_committed(name).values == [b"old"]
