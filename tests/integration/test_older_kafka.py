"""A cluster that came from an older Kafka: transactions as they were before transaction.version 2 (KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from tests.support.kafka import KafkaBroker, running

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(KafkaBroker(tmp_path_factory.mktemp("older"), features={"transaction.version": 1})) as broker:
        yield broker.address


def committed(address: str, topic: str) -> list[bytes]:
    with Reader(address, topic, start="earliest", stop="latest") as reader:
        return [bytes(record.value) for record in reader if record.value is not None]


def test_a_producer_goes_on_after_it_has_aborted(address: str) -> None:
    """IDEM-5: it does not fence itself. A coordinator of that version aborts under an epoch that it tells nobody."""
    with Producer(address, name="aborts") as producer:
        for number in range(3):
            transaction = producer.transaction().__enter__()
            producer.send("aborted", b"dropped").result(60)
            transaction.abort()
            with producer.transaction():
                producer.send("aborted", b"kept %d" % number)
    assert committed(address, "aborted") == [b"kept 0", b"kept 1", b"kept 2"]


def test_a_producer_goes_on_from_saved_ids(address: str) -> None:
    """IDEM-4: taking a partition over is a transaction that is aborted at once."""
    with Producer(address, name="resumes") as producer:
        producer.send("resumed", b"one", partition=0).result(60)
        ids = producer.ids
        producer.send("resumed", b"two", partition=0).result(60)
    with Producer(address, ids=ids) as producer:
        for value in (b"two", b"three"):
            producer.send("resumed", value, partition=0).result(60)
    assert committed(address, "resumed") == [b"one", b"two", b"three"]
