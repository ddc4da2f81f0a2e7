"""An owner on Apache Kafka writes in lanes: what happens to a partition happens to it alone (PROD-4, PROD-6, OWN-9)."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

import fencepost
from fencepost.client.produce.ticket import Ticket
from fencepost.errors import ErrorCode, Expired, SendFailed
from tests.conftest import Engine
from tests.support.kafka_owners import KafkaOwner
from tests.support.proxy import Proxy
from tests.support.scripted import Api, DelayedAnswer, Fate
from tests.support.scripted.fates import Script

pytestmark = pytest.mark.fault

PARTITIONS, RECORDS = 3, 240
PATIENCE = 120.0
FAULTY = (Api.PRODUCE, Api.END_TXN, Api.ADD_PARTITIONS_TO_TXN, Api.INIT_PRODUCER_ID)
FATES: tuple[Script, ...] = (Fate.CUT, Fate.LOSE, DelayedAnswer(0.05))


def test_lost_answers_and_bad_records_keep_partitions_ordered_and_tickets_true(
    engine: Engine, name: str, chance: random.Random
) -> None:
    """Steps of transactions and batches are lost, carried out or not; some records are refused. The owner goes on."""
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, PARTITIONS, configs={"max.message.bytes": "2000"})
    sent: dict[int, list[tuple[int, Ticket]]] = defaultdict(list)
    bad: list[Ticket] = []
    with Proxy(engine.address) as proxy:
        producer = KafkaOwner(proxy.address, request_timeout=5.0, linger=0.0)
        with producer:
            producer.own(f"g-{name}", [f"{name}-{index}" for index in range(PARTITIONS)], generation=1)

            def fate(key: int) -> Script:
                return chance.choice(FATES) if key in FAULTY and chance.random() < 0.08 else Fate.ANSWER

            proxy.choose = fate
            for number in range(RECORDS):
                partition = chance.randrange(PARTITIONS)
                if chance.random() < 0.03:
                    bad.append(producer.send(name, bytes(5_000), partition=partition))
                sent[partition].append((number, producer.send(name, b"%d" % number, partition=partition)))
                if chance.random() < 0.1:
                    producer.send(name, b"", partition=partition).exception(PATIENCE)
            said: Counter[str] = Counter()
            for ticket in bad:
                error = ticket.exception(PATIENCE)
                assert isinstance(error, SendFailed)
                assert (error.code, error.persisted) == (ErrorCode.MESSAGE_TOO_LARGE, "no")
            for tickets in sent.values():
                for _, ticket in tickets:
                    failed = ticket.exception(PATIENCE)
                    said["yes" if failed is None else getattr(failed, "persisted", "?")] += 1
            proxy.choose = lambda key: Fate.ANSWER
            producer.send(name, b"", partition=0).result(PATIENCE)
            producer.check_owned()
    print(dict(said), f"refused {len(bad)}")
    there: dict[int, list[int]] = defaultdict(list)
    with fencepost.Reader(engine.address, name, stop="latest") as reader:
        for record in reader:
            if record.value:
                there[record.partition].append(int(record.value))
    for partition, tickets in sent.items():
        in_order = there[partition]
        assert in_order == sorted(set(in_order)), "out of order, or twice"
        for number, ticket in tickets:
            error = ticket.exception(0)
            persisted = "yes" if error is None else getattr(error, "persisted", "?")
            assert persisted == "unknown" or (number in in_order) == (persisted == "yes"), (number, error)
    assert said["yes"] + said["unknown"] == RECORDS, "a record fails alone"


def test_a_record_expires_while_its_commit_hangs_and_the_lane_goes_on_afterwards(engine: Engine, name: str) -> None:
    """PROD-8: acknowledged is not committed. What has expired is neither sent again nor a hole for what follows."""
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, 1)
    with (
        Proxy(engine.address) as proxy,
        KafkaOwner(proxy.address, delivery_timeout=4.0, request_timeout=2.0) as producer,
    ):
        producer.own(f"g-{name}", [f"{name}-0"], generation=1)
        producer.send(name, b"before").result(PATIENCE)
        proxy.choose = lambda key: Fate.IGNORE if key == Api.END_TXN else Fate.ANSWER
        error = producer.send(name, b"expired").exception(PATIENCE)
        assert isinstance(error, Expired)
        assert error.persisted == "unknown"
        assert "not committed" in str(error)
        proxy.choose = lambda key: Fate.ANSWER
        while (failed := producer.send(name, b"after").exception(PATIENCE)) is not None:
            assert isinstance(failed, Expired)
            assert failed.persisted == "no", "the lane was not ready for it yet"
        producer.check_owned()
    with fencepost.Reader(engine.address, name, stop="latest") as reader:
        assert [record.value for record in reader if record.value != b"expired"] == [b"before", b"after"]


def test_an_owners_transaction_spans_partitions_between_records_that_are_sent_alone(engine: Engine, name: str) -> None:
    """The numbers of a lane and those of the caller's transactions have nothing to do with each other."""
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, PARTITIONS)
    with KafkaOwner(engine.address) as producer:
        producer.own(f"g-{name}", [f"{name}-{index}" for index in range(PARTITIONS)], generation=1)

        def send(number: int) -> None:
            for partition in range(PARTITIONS):
                producer.send(name, b"%d" % number, partition=partition)

        for number in range(0, 30, 3):
            send(number)
            with producer.transaction():
                send(number + 1)
            dropped = producer.transaction()
            dropped.__enter__()
            send(-1)
            dropped.abort()
            send(number + 2)
        producer.flush()
    with fencepost.Reader(engine.address, name, stop="latest") as reader:
        there: dict[int, list[int]] = defaultdict(list)
        for record in reader:
            there[record.partition].append(int(record.value or b""))
    assert there == {partition: list(range(30)) for partition in range(PARTITIONS)}
