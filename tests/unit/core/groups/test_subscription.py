"""Subscriptions and assignments of classic members, and how a leader divides the partitions."""

from __future__ import annotations

import pytest

from fencepost.core.groups.subscription import (
    COOPERATIVE,
    Subscription,
    divide,
    read_assignment,
    read_subscription,
    topics_of_subscription,
    write_assignment,
    write_subscription,
)
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit


def parts(*indexes: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", index) for index in indexes)


def test_what_is_written_is_read() -> None:
    subscription = Subscription(frozenset({"t", "é"}), parts(0, 2), 7)
    data = write_subscription(subscription)
    assert read_subscription(data) == subscription
    assert topics_of_subscription(data) == frozenset({"t", "é"})
    assert frozenset(read_assignment(write_assignment(parts(1, 3)))) == parts(1, 3)


def test_the_first_version_has_topics_and_no_more() -> None:
    data = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2xy"
    assert read_subscription(data) == Subscription(frozenset({"t"}), version=0)


@pytest.mark.parametrize("data", [b"", b"\0\1\0\0", b"\0\0\0\0\0\1\xff\xff", b"\0\0\0\0\0\1\0\1\xff\0\0\0\0"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_subscription(data)


@pytest.mark.parametrize("protocol", ["range", "roundrobin", COOPERATIVE])
def test_every_partition_of_a_wanted_topic_goes_to_one_subscriber(protocol: str) -> None:
    members = {
        "a": Subscription(frozenset({"t", "u"})),
        "b": Subscription(frozenset({"t"})),
        "c": Subscription(frozenset({"missing"})),
    }
    shares = divide(protocol, members, {"t": 4, "u": 1})
    assert len(shares["a"]) + len(shares["b"]) == 5
    assert shares["a"] | shares["b"] == parts(0, 1, 2, 3) | {TopicPartition("u", 0)}
    assert shares["c"] == frozenset()


def test_a_cooperative_newcomer_gets_nothing_that_another_still_holds() -> None:
    topics = frozenset({"t"})
    first = {"a": Subscription(topics, parts(0, 1, 2, 3), 1), "b": Subscription(topics)}
    shares = divide(COOPERATIVE, first, {"t": 4})
    assert (len(shares["a"]), shares["b"]) == (2, frozenset())
    second = {"a": Subscription(topics, shares["a"], 2), "b": Subscription(topics, generation=2)}
    shares = divide(COOPERATIVE, second, {"t": 4})
    assert shares["a"] == second["a"].owned
    assert shares["a"] | shares["b"] == parts(0, 1, 2, 3)


def test_what_two_claim_stays_with_the_newer_generation_and_goes_to_no_third() -> None:
    topics = frozenset({"t"})
    claims = {
        "a": Subscription(topics, parts(0), 4),
        "b": Subscription(topics, parts(0, 1), 5),
        "c": Subscription(topics),
    }
    shares = divide(COOPERATIVE, claims, {"t": 2})
    assert TopicPartition("t", 0) not in shares["a"] | shares["c"]
