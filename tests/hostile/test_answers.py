"""Attacks on the memory and the time that answers take: polls that wait, unread answers, fetches of many partitions."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from fencepost.errors import ErrorCode
from fencepost.wire import hot
from tests.support.attacks import MIB, Siege
from tests.support.batches import batch
from tests.support.raw import CREATE_TOPICS, RawClient, new_topic

pytestmark = pytest.mark.hostile

BIG = "big"
PARTITIONS = 10_000
LONG = 60_000
HUGE = 2**31 - 1


def create_topic_of_large_batches(siege: Siege, name: str, size: int) -> None:
    """A topic whose one batch has so many bytes."""
    with siege.connect() as client:
        topic = new_topic(name, configs={"max.message.bytes": str(100 * MIB)})
        [row] = client.call(CREATE_TOPICS, 5, topics=[topic], timeout=60_000, validate_only=False).topics
        assert row.error_code == ErrorCode.NONE
        assert client.produce(name, batch([bytes(size)])).error is ErrorCode.NONE


def send_wide_fetch(client: RawClient, **fields: int) -> None:
    """Of all partitions of the big topic."""
    wanted = [hot.FetchPartition(index=index, fetch_offset=0, max_bytes=MIB) for index in range(PARTITIONS)]
    topics = [hot.FetchTopic(name=BIG, topic_id=None, partitions=wanted)]
    defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 * MIB, "isolation_level": 0}
    client.send_fetch_request(hot.FetchRequest(**{**defaults, **fields}, topics=topics))  # type: ignore[arg-type]


def test_polls_that_wait_for_more_than_they_can_get_hold_nothing(siege: Siege) -> None:
    siege.create_topic("seven")
    with siege.connect() as client:
        for _ in range(10):
            client.produce("seven", batch([bytes(7 * MIB // 10)]))
    with siege.attack("150 polls that wait for min_bytes of 2 GiB"), ExitStack() as stack:
        for _ in range(150):
            client = stack.enter_context(siege.connect())
            client.send_fetch("seven", 0, max_wait_ms=LONG, min_bytes=HUGE, max_bytes=HUGE)
        siege.linger(siege.size(50, 300))


def test_polls_of_a_busy_partition_do_not_read_it_again_and_again(siege: Siege) -> None:
    with siege.connect() as client:
        for _ in range(8):
            client.produce("bystander", batch([bytes(MIB - 1000)]))
    with siege.attack("polls of the bystander's partition, far from min_bytes"), ExitStack() as stack:
        for _ in range(siege.size(50, 150)):
            client = stack.enter_context(siege.connect())
            client.send_fetch("bystander", 0, max_wait_ms=LONG, min_bytes=HUGE, max_bytes=HUGE)
        siege.linger(siege.size(50, 300))


def test_large_batches_that_nobody_reads_wait_in_line(siege: Siege) -> None:
    create_topic_of_large_batches(siege, "sixty", 60 * MIB)
    with siege.attack("40 unread fetches of a batch of 60 MB"), ExitStack() as stack:
        for _ in range(40):
            client = stack.enter_context(siege.connect())
            client.send_fetch("sixty", 0)
        siege.linger(siege.size(100, 500))


def test_large_batches_pass_those_that_nobody_reads(siege: Siege) -> None:
    """Who does not read is disconnected when others wait for the memory."""
    create_topic_of_large_batches(siege, "fifty", 50 * MIB)
    with siege.attack("a fetch of 50 MB beside unread ones"), ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(siege.connect()).send_fetch("fifty", 0)
        with siege.connect() as reader:
            for _ in range(siege.size(1, 3)):
                assert len(reader.fetch("fifty", 0).data) > 50 * MIB


def test_small_answers_that_nobody_reads_are_counted(siege: Siege) -> None:
    """Each connection has less than what it may have unread by itself; all of them together have too much."""
    siege.create_topic("small")
    with siege.connect() as client:
        for _ in range(2):
            client.produce("small", batch([bytes(MIB // 2 - 1000)]))
    with siege.attack("small answers that nobody reads, on many sockets"), ExitStack() as stack:
        for _ in range(siege.size(300, 900)):
            deaf = stack.enter_context(siege.connect(timeout=0.2))
            with suppress(OSError):
                for _ in range(60):
                    deaf.send_fetch("small", 0, partition_max_bytes=MIB // 2)
        siege.linger(siege.size(20, 200))


def test_a_fetch_of_ten_thousand_partitions_is_worked_off_in_pieces(siege: Siege) -> None:
    siege.create_topic(BIG, PARTITIONS)
    with siege.connect() as client:
        send_wide_fetch(client)  # opens them all
        client.receive()
        with siege.attack("Fetch: 10,000 partitions"):
            for _ in range(siege.size(3, 30)):
                send_wide_fetch(client)
                assert len(client.receive()[1].topics[0].partitions) == PARTITIONS


def test_polls_of_ten_thousand_partitions_may_wait(siege: Siege) -> None:
    siege.create_topic(BIG, PARTITIONS)
    with siege.attack("polls of 10,000 partitions that wait"), ExitStack() as stack:
        for _ in range(siege.size(20, 150)):
            client = stack.enter_context(siege.connect())
            send_wide_fetch(client, max_wait_ms=LONG)
        siege.linger(siege.size(50, 300))


def test_sessions_without_end_are_bounded(siege: Siege) -> None:
    siege.create_topic(BIG, PARTITIONS)
    with siege.attack("Fetch: sessions of 10,000 partitions"), ExitStack() as stack:
        for _ in range(siege.size(25, 150)):
            client = stack.enter_context(siege.connect())
            send_wide_fetch(client, session_id=0, session_epoch=0)
            client.receive()
        siege.linger(siege.size(20, 100))


def test_sessions_that_want_and_forget_all_are_changed_in_pieces(siege: Siege) -> None:
    siege.create_topic(BIG, PARTITIONS)
    every = [hot.ForgottenTopic(name=BIG, topic_id=None, partitions=list(range(PARTITIONS)))]
    with siege.connect() as client:
        send_wide_fetch(client)  # opens them all
        client.receive()
        with siege.attack("Fetch: sessions that want 10,000 partitions and forget them"):
            for _ in range(siege.size(3, 30)):
                send_wide_fetch(client, session_id=0, session_epoch=0)
                session = client.receive()[1].session_id
                assert session
                gone = hot.FetchRequest(0, 1, MIB, 0, [], session_id=session, session_epoch=1, forgotten=every)
                client.send_fetch_request(gone)
                answer = client.receive()[1]
                # A session without partitions ends, so there is nothing left to answer with.
                assert (answer.error_code, answer.session_id, answer.topics) == (ErrorCode.NONE, 0, [])
