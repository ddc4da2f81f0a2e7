"""Requests that were on their way for too long: within one epoch nothing in them says to which transaction they belong.

Kafka's older protocol takes them at their word (KIP-890 tells what comes of it). fencepost's server looks at the
connection: a client that gave one up and has spoken over a newer one since does not speak over the old one any more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.raw import ConnectionEnded
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE


@pytest.fixture
def old(server: TestedServer) -> Iterator[TransactionClient]:
    with TransactionClient(server.address) as connection:
        yield connection


@pytest.fixture
def new(server: TestedServer, old: TransactionClient) -> Iterator[TransactionClient]:
    old.call(18, 0)  # the server has seen it: the order of the connections is certain
    with TransactionClient(server.address) as connection:
        yield connection


@pytest.fixture
def producer(old: TransactionClient, name: str) -> TransactionalProducer:
    """Known over the old connection, which its client gives up then."""
    old.create_topic(name, partitions=2)
    return TransactionalProducer.start(old, f"{name}-id")


def was_taken(client: TransactionClient) -> bool:
    """Whether the request that was sent is answered; else the connection must end."""
    try:
        client.receive()
    except ConnectionEnded:
        return False
    return True


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_and_the_next_transaction(
    server: TestedServer,
    old: TransactionClient,
    new: TransactionClient,
    producer: TransactionalProducer,
    name: str,
    commit: bool,
) -> None:
    assert new.add(producer, {name: [0]}) == [NONE]
    assert new.write(producer, name, [b"half"]).error is NONE
    old.send_end(producer, commit=commit)
    ends_it = server.answer_to("a delayed EndTxn of the same epoch ends the next transaction")
    assert was_taken(old) is ends_it
    if not ends_it:
        assert new.write(producer, name, [b"whole"]).error is NONE
        assert new.end(producer, commit=True) is NONE
        assert new.fetch_committed(name).values == [b"half", b"whole"]


def test_a_late_add_and_the_time_between_transactions(
    server: TestedServer, old: TransactionClient, new: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    assert new.add(producer, {name: [0]}) == [NONE]
    assert new.end(producer, commit=True) is NONE
    new.await_state(producer.name, "CompleteCommit")
    old.send_add(producer, {name: [1]})
    begins = server.answer_to("a delayed AddPartitionsToTxn of the same epoch begins a transaction")
    assert was_taken(old) is begins
    assert new.describe(producer.name).transaction_state == ("Ongoing" if begins else "CompleteCommit")


def test_a_late_add_does_not_extend_the_next_transaction(
    server: TestedServer, old: TransactionClient, new: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    assert new.add(producer, {name: [0]}) == [NONE]
    old.send_add(producer, {name: [1]})
    extends = server.answer_to("a delayed AddPartitionsToTxn of the same epoch begins a transaction")
    assert was_taken(old) is extends
    [topic] = new.describe(producer.name).topics
    assert sorted(topic.partitions) == ([0, 1] if extends else [0])


def test_a_client_that_lives_comes_back_over_a_new_connection_and_goes_on(
    server: TestedServer, old: TransactionClient, new: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    assert new.add(producer, {name: [0]}) == [NONE]
    old.send_end(producer, commit=False)
    was_taken(old)
    with TransactionClient(server.address) as newest:
        assert newest.end(producer, commit=False) is NONE
        newest.await_state(producer.name, "CompleteAbort")
        assert newest.add(producer, {name: [0]}) == [NONE]


def test_a_new_epoch_is_not_held_to_the_connections_of_the_old_one(
    old: TransactionClient, new: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    assert new.add(producer, {name: [0]}) == [NONE]
    _, _, producer.epoch = old.init(producer.name)
    assert old.add(producer, {name: [0]}) == [NONE]
    assert old.end(producer, commit=True) is NONE


def test_a_request_that_changes_nothing_is_answered_over_any_connection(
    old: TransactionClient, new: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    assert new.add(producer, {name: [0]}) == [NONE]
    assert old.add(producer, {name: [0]}) == [NONE]
    assert old.write(producer, name, [b"data goes over any of them"]).error is NONE
    assert new.end(producer, commit=True) is NONE
    assert old.end(producer, commit=True) is NONE
