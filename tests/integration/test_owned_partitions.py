"""Where an owner's records go: to what it owns, on fencepost's server and on Apache Kafka (OWN-1, OWN-9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import fencepost
from fencepost.kernel import partition_for_key
from tests.integration.conftest import TestedServer

pytestmark = pytest.mark.integration

PARTITIONS = 6
OWNED = (1, 4)
PATIENCE = 60.0


@pytest.fixture
def six(server: TestedServer, name: str) -> str:
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def owner(server: TestedServer, six: str) -> Iterator[fencepost.Producer]:
    """Owns two of six partitions; small batches, so that there are many of them."""
    with fencepost.Producer(server.address, batch_size=400, linger=0.0) as producer:
        producer.own(f"g-{six}", [f"{six}-{index}" for index in OWNED], generation=0)
        yield producer


def key_of(partition: int) -> bytes:
    return next(key for key in map(b"%d".__mod__, range(1000)) if partition_for_key(key, PARTITIONS) == partition)


def test_records_without_a_key_go_to_owned_partitions_only(
    server: TestedServer, owner: fencepost.Producer, six: str
) -> None:
    """Partitions of others may be owned by somebody who counts on being their only writer."""
    tickets = [owner.send(six, b"%d" % number) for number in range(300)]
    assert {ticket.result(PATIENCE).partition for ticket in tickets} <= set(OWNED)


def test_a_key_whose_partition_is_not_owned_raises_and_names_it(owner: fencepost.Producer, six: str) -> None:
    owner.send(six, b"known now", key=key_of(4)).result(PATIENCE)
    for _ in range(3):  # the native way into an open batch must not be open for it either
        with pytest.raises(fencepost.NotOwned) as caught:
            owner.send(six, b"x", key=key_of(2))
    error = caught.value
    assert (error.topic, error.partition, error.owned, error.persisted) == (six, 2, OWNED, "no")
    for said in (f"its key belongs to {six}-2", f"owns {six}-1, {six}-4", "claim that partition too"):
        assert said in str(error)
    owner.send(six, b"goes on", key=key_of(1)).result(PATIENCE)


def test_a_table_goes_to_owned_partitions_and_is_refused_whole_for_a_strange_key(
    server: TestedServer, owner: fencepost.Producer, six: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    owner.send(six, b"known now", partition=1).result(PATIENCE)
    for _ in range(6):
        runs = owner.send_arrow(six, pa.table({"value": [b"x"] * 20})).result(PATIENCE)
        assert {run.partition for run in runs} <= set(OWNED)
    keys = [key_of(1), None, key_of(2)]
    with pytest.raises(fencepost.NotOwned, match=f"its key belongs to {six}-2"):
        owner.send_arrow(six, pa.table({"key": keys, "value": [b"x"] * 3}))
    named = pa.table({"key": keys, "value": [b"x"] * 3, "partition": pa.array([None, None, 1], pa.int32())})
    runs = owner.send_arrow(six, named).result(PATIENCE)
    assert {run.partition for run in runs} <= set(OWNED)


def test_after_a_release_records_go_anywhere_again(server: TestedServer, owner: fencepost.Producer, six: str) -> None:
    claim = owner.own(f"g-{six}", [f"{six}-{index}" for index in OWNED], generation=1)
    owner.send(six, b"known now", partition=1).result(PATIENCE)
    with pytest.raises(fencepost.NotOwned):
        owner.send(six, b"x", key=key_of(2))
    claim.release()
    assert owner.send(six, b"x", key=key_of(2)).result(PATIENCE).partition == 2


def test_records_of_one_owned_partition_stay_in_order_however_they_are_addressed(
    server: TestedServer, six: str
) -> None:
    """PROD-4: without a key, by key and by number, they are one stream."""
    with fencepost.Producer(server.address, batch_size=400) as producer:
        producer.own(f"g-{six}", [f"{six}-3"], generation=0)
        ways: list[dict[str, Any]] = [{}, {"key": key_of(3)}, {"partition": 3}]
        for number in range(300):
            producer.send(six, b"%d" % number, **ways[number % 3])
    with fencepost.Reader(server.address, six, stop="latest") as reader:
        assert [(record.partition, int(record.value or b"")) for record in reader] == [(3, n) for n in range(300)]


def test_an_owner_of_partitions_that_do_not_exist_is_told_so(server: TestedServer, six: str) -> None:
    with fencepost.Producer(server.address) as producer:
        producer.own(f"g-{six}", [f"{six}-77"], generation=0)
        producer.send(six, b"known now", partition=0).result(PATIENCE)
        with pytest.raises(fencepost.NotOwned, match="own one that exists"):
            producer.send(six, b"x")


def test_other_topics_and_other_resources_restrict_nothing(server: TestedServer, six: str, name: str) -> None:
    with fencepost.Producer(server.address) as producer:
        producer.own(f"g-{six}", ["a-job", f"other-{name}-1"], generation=0)
        tickets = [producer.send(six, b"x", key=key_of(partition)) for partition in range(PARTITIONS)]
        assert [ticket.result(PATIENCE).partition for ticket in tickets] == list(range(PARTITIONS))
