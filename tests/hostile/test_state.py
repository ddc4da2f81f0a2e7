"""Attacks on what the server keeps: groups, topics, producers and names without end."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from fencepost.errors import ErrorCode
from tests.support.attacks import MIB, Siege
from tests.support.batches import batch
from tests.support.group_client import GroupMember
from tests.support.raw import CREATE_TOPICS, INIT_PRODUCER_ID, new_topic
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.hostile

LIST_TRANSACTIONS = 66


def test_groups_that_say_much_of_themselves_are_limited_together(siege: Siege) -> None:
    with siege.attack("JoinGroup: a megabyte of metadata, in many groups"), siege.connect() as client:
        refused = 0
        for number in range(siege.size(150, 1000)):
            member = GroupMember(client, f"group-{number}")
            member.protocols = [{"name": "range", "metadata": bytes(MIB - 10_000)}]
            refused += member.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert refused > 50


def test_members_with_many_protocols_are_refused(siege: Siege) -> None:
    with siege.attack("JoinGroup: ten thousand protocols"), siege.connect() as client:
        for _ in range(siege.size(3, 50)):
            member = GroupMember(client, "group")
            member.protocols = [{"name": f"p{number}", "metadata": b""} for number in range(10_000)]
            assert member.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_topics_without_end_are_refused(siege: Siege) -> None:
    with siege.attack("CreateTopics: topics and partitions without end"), siege.connect() as client:
        for number in range(siege.size(3, 30)):
            topics = [new_topic(f"t-{number}-{each}", 500) for each in range(siege.size(200, 1000))]
            answer = client.call(CREATE_TOPICS, 5, topics=topics, timeout=60_000, validate_only=False)
            codes = {ErrorCode.of(row.error_code) for row in answer.topics}
        assert ErrorCode.POLICY_VIOLATION in codes


def test_producers_without_end_are_remembered_up_to_a_limit(siege: Siege) -> None:
    siege.create_topic("target")
    with siege.attack("Produce: another producer with each batch"), siege.connect() as client:
        for start in range(0, siege.size(2_000, 150_000), 50):
            for pid in range(start, start + 50):
                client.send_produce("target", batch([b"x"], pid=pid, epoch=0, sequence=0))
            for _ in range(50):
                client.receive_produced()


def test_transactional_ids_without_end_are_refused(siege: Siege) -> None:
    with siege.attack("InitProducerId: another name each time"), siege.connect() as client:
        for start in range(0, siege.size(300, 25_000), 50):
            for number in range(start, start + 50):
                client.send(INIT_PRODUCER_ID, 1, transactional_id=f"name-{number}", transaction_timeout=1000)
            for _ in range(50):
                client.receive()


def test_a_pattern_that_has_no_end_is_matched_in_a_moment(siege: Siege) -> None:
    with siege.connect() as client:
        name = "a" * 40 + "!"
        client.call(INIT_PRODUCER_ID, 1, transactional_id=name, transaction_timeout=1000)
        with siege.attack("ListTransactions: a pattern that backtracks"):
            for pattern, matched in (("(a+)+$", False), ("(a|a)*b", False), ("(a+)+!", True), (".*!", True)):
                answer = client.call(
                    LIST_TRANSACTIONS, 2, state_filters=[], producer_id_filters=[], transactional_id_pattern=pattern
                )
                assert (name in {row.transactional_id for row in answer.transaction_states}) == matched


def test_filters_without_end_are_looked_up_not_searched(siege: Siege) -> None:
    with siege.connect() as client:
        for number in range(siege.size(200, 5000)):
            client.call(INIT_PRODUCER_ID, 1, transactional_id=f"filtered-{number}", transaction_timeout=1000)
        with siege.attack("ListTransactions: 50,000 filters"):
            for _ in range(siege.size(2, 20)):
                client.call(LIST_TRANSACTIONS, 0, state_filters=[], producer_id_filters=[-1] * 50_000)


def test_transactions_that_time_out_together_are_aborted_a_few_at_a_time(siege: Siege) -> None:
    count, partitions = siege.size((300, 100), (5_000, 1_000))
    siege.create_topic("late", partitions)
    with TransactionClient(siege.address, timeout=100) as client:
        for number in range(count):
            name = f"late-{number}"
            client.send(
                INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=2_000, producer_id=-1, producer_epoch=-1
            )
        producers = []
        for number in range(count):
            answer = client.receive()[1]
            producers.append(TransactionalProducer(f"late-{number}", answer.producer_id, answer.producer_epoch))
        with siege.attack(f"{count:,} transactions that time out together"):
            for number, producer in enumerate(producers):
                client.send_add(producer, {"late": [number % partitions]})
            for _ in producers:
                client.receive()
            for producer in producers:
                while client.describe(producer.name).transaction_state == "Ongoing":
                    siege.linger(5)


def test_requests_for_one_partition_each_do_not_fill_the_rounds_of_syncs(siege: Siege) -> None:
    """Each client writes to many partitions, with a request for each, and does not wait for the answers."""
    clients_count, each = siege.size((10, 30), (60, 60))
    siege.create_topic("narrow", clients_count * each)
    record = batch([b"x"])
    with ExitStack() as stack:
        clients = [stack.enter_context(siege.connect()) for _ in range(clients_count)]

        def write_to_all() -> None:
            for first, client in enumerate(clients):
                for index in range(each):
                    client.send_produce("narrow", record, partition=first * each + index)
            for client in clients:
                for _ in range(each):
                    assert client.receive_produced().error is ErrorCode.NONE

        write_to_all()  # opens them
        with siege.attack(f"Produce: {clients_count} clients, {each} partitions each, one per request"):
            for _ in range(siege.size(2, 20)):
                write_to_all()
