"""Attacks on what the server keeps: groups, topics, producers and names without end."""

from __future__ import annotations

import pytest

from fencepost.errors import ErrorCode
from tests.support.attacks import MIB, Siege
from tests.support.batches import batch
from tests.support.group_client import GroupMember
from tests.support.raw import CREATE_TOPICS, INIT_PRODUCER_ID, new_topic

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
