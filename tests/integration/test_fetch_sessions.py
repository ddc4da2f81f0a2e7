"""Fetch sessions (KIP-227): a request names what changes, an answer has what is new."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.wire import hot
from tests.integration.conftest import TestedServer
from tests.support.batches import batch
from tests.support.raw import DELETE_TOPICS, Fetched, RawClient, fetched

pytestmark = pytest.mark.integration

LONG = 60_000
NONE = ErrorCode.NONE


class Consumer:
    """A client with a session, which moves on over what it reads if it is told to."""

    def __init__(self, client: RawClient, topic: str | uuid.UUID, *, version: int = 12) -> None:
        self.client = client
        self.topic = topic
        self.version = version
        self.session_id = 0
        self.epoch = 0
        self.error = NONE

    def send(
        self,
        offsets: Mapping[int, int],
        *,
        forgotten: Sequence[int] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        epoch: int | None = None,
        session_id: int | None = None,
    ) -> None:
        name = self.topic if isinstance(self.topic, str) else None
        topic_id = self.topic if isinstance(self.topic, uuid.UUID) else None
        wanted = [hot.FetchPartition(index=index, fetch_offset=at, max_bytes=1 << 20) for index, at in offsets.items()]
        self.client.send_fetch_request(
            hot.FetchRequest(
                max_wait_ms=max_wait_ms,
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=0,
                topics=[hot.FetchTopic(name, topic_id, wanted)] if wanted else [],
                session_id=self.session_id if session_id is None else session_id,
                session_epoch=self.epoch if epoch is None else epoch,
                forgotten=[hot.ForgottenTopic(name, topic_id, list(forgotten))] if forgotten else [],
            ),
            self.version,
        )

    def receive(self) -> dict[int, Fetched]:
        _, answer = self.client.receive()
        self.error = ErrorCode.of(answer.error_code)
        if self.error is NONE:
            self.session_id = answer.session_id
            self.epoch += 1
        return {part.index: fetched(part) for topic in answer.topics for part in topic.partitions}

    def fetch(self, offsets: Mapping[int, int] | None = None, **how: object) -> dict[int, Fetched]:
        self.send(offsets or {}, **how)  # type: ignore[arg-type]
        return self.receive()


@pytest.fixture
def consumer(client: RawClient, name: str) -> Consumer:
    """With a session of three partitions, of which the first has a record that is read."""
    client.create_topic(name, partitions=3)
    client.produce(name, batch([b"first"]))
    consumer = Consumer(client, name)
    answer = consumer.fetch({0: 0, 1: 0, 2: 0})
    assert {index: part.values for index, part in answer.items()} == {0: [b"first"], 1: [], 2: []}
    assert consumer.session_id != 0
    return consumer


def test_an_answer_has_only_partitions_with_news(client: RawClient, name: str, consumer: Consumer) -> None:
    assert consumer.fetch({0: 1}) == {}
    assert consumer.fetch() == {}
    client.produce(name, batch([b"second"]), partition=2)
    answer = consumer.fetch()
    assert {index: part.values for index, part in answer.items()} == {2: [b"second"]}
    assert consumer.fetch({2: 1}) == {}


def test_what_the_client_does_not_move_on_from_is_sent_again(consumer: Consumer) -> None:
    for _ in range(3):
        assert {index: part.values for index, part in consumer.fetch().items()} == {0: [b"first"]}
    assert consumer.fetch({0: 1}) == {}
    assert consumer.fetch({0: 0})[0].values == [b"first"]  # it may go back, too


def test_a_forgotten_partition_is_not_answered(client: RawClient, name: str, consumer: Consumer) -> None:
    assert consumer.fetch({0: 1}, forgotten=[1]) == {}
    for partition in (1, 2):
        client.produce(name, batch([b"x"]), partition=partition)
    assert list(consumer.fetch()) == [2]
    assert consumer.fetch({1: 0, 2: 1})[1].values == [b"x"]  # wanted again


def test_a_session_without_partitions_is_ended(consumer: Consumer) -> None:
    first = consumer.session_id
    assert consumer.fetch(forgotten=[0, 1, 2]) == {}
    assert (consumer.error, consumer.session_id) == (NONE, 0)
    consumer.fetch(session_id=first)
    assert consumer.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("epoch", [2, 7, 2**31 - 1, -2])
def test_another_epoch_is_refused_and_changes_nothing(consumer: Consumer, epoch: int) -> None:
    assert consumer.fetch({0: 1}, epoch=epoch) == {}
    assert consumer.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert consumer.fetch()[0].values == [b"first"]
    assert consumer.error is NONE


def test_a_repeated_epoch_is_refused(consumer: Consumer) -> None:
    consumer.fetch({0: 1})
    consumer.fetch(epoch=1)
    assert consumer.error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_a_session_that_is_closed_is_gone(consumer: Consumer) -> None:
    first = consumer.session_id
    assert consumer.fetch({0: 0}, epoch=-1)[0].values == [b"first"]
    assert consumer.session_id == 0
    consumer.fetch(session_id=first, epoch=1)
    assert consumer.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_new_session_ends_the_one_that_it_names(consumer: Consumer) -> None:
    first = consumer.session_id
    assert list(consumer.fetch({1: 0, 2: 0}, epoch=0)) == [1, 2]
    assert consumer.session_id not in (0, first)
    consumer.fetch(session_id=first, epoch=1)
    assert consumer.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    consumer.epoch = 1
    assert consumer.fetch() == {}
    assert consumer.error is NONE


def test_a_partition_that_is_not_there_is_named_each_time(consumer: Consumer) -> None:
    for _ in range(3):
        answer = consumer.fetch({0: 1, 9: 0})
        assert {index: part.error for index, part in answer.items()} == {9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert consumer.fetch(forgotten=[9]) == {}


def test_an_offset_out_of_range_is_named_until_the_client_asks_for_another(consumer: Consumer) -> None:
    for _ in range(2):
        answer = consumer.fetch({0: 5})
        assert {index: part.error for index, part in answer.items()} == {0: ErrorCode.OFFSET_OUT_OF_RANGE}
    assert set(consumer.fetch({0: 1})) <= {0}
    assert consumer.fetch() == {}


def test_a_long_poll_of_a_session_wakes_for_any_of_its_partitions(
    server: TestedServer, name: str, consumer: Consumer
) -> None:
    consumer.fetch({0: 1})
    for partition in (2, 0, 1):
        consumer.send({}, max_wait_ms=LONG)
        with server.connect() as writer:
            offset = writer.produce(name, batch([b"news"]), partition=partition).base_offset
        answer = consumer.receive()
        assert {index: part.values for index, part in answer.items()} == {partition: [b"news"]}
        assert consumer.fetch({partition: offset + 1}) == {}


def test_a_long_poll_of_a_session_ends_empty_when_its_time_is_over(consumer: Consumer) -> None:
    consumer.fetch({0: 1})
    assert consumer.fetch(max_wait_ms=50) == {}
    assert consumer.error is NONE


def test_a_session_by_topic_ids_is_another_one_than_by_names(client: RawClient, name: str) -> None:
    topic_id = client.create_topic(name)
    client.produce(name, batch([b"a"]))
    consumer = Consumer(client, topic_id, version=16)
    assert consumer.fetch({0: 0})[0].values == [b"a"]
    assert consumer.fetch({0: 1}) == {}
    client.produce(name, batch([b"b"]))
    assert consumer.fetch()[0].values == [b"b"]
    consumer.topic, consumer.version = name, 12
    consumer.fetch({0: 2})
    assert consumer.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_of_another_connection_is_not_found(server: TestedServer, consumer: Consumer) -> None:
    with server.connect() as other:
        consumer.client = other
        consumer.fetch()
        assert consumer.error is server.answer_to("a fetch session on another connection")


def test_every_record_comes_once_however_small_the_answers(client: RawClient, name: str) -> None:
    """With records arriving meanwhile, partitions coming and going, and less room than there is to read."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    partitions = range(5)
    client.create_topic(name, partitions=len(partitions))
    consumer = Consumer(client, name)
    written: dict[int, list[bytes]] = {index: [] for index in partitions}
    read: dict[int, list[bytes | None]] = {index: [] for index in partitions}
    wanted, moved = set(partitions), set(partitions)

    def turn() -> None:
        answer = consumer.fetch(
            {index: len(read[index]) for index in sorted(moved)}, forgotten=dropped, max_bytes=dice.choice([1, 400])
        )
        assert consumer.error is NONE
        moved.clear()
        for index, part in answer.items():
            assert part.error is NONE
            assert index in wanted
            read[index] += part.values[len(read[index]) - part.offsets[0] :] if part.values else []
            moved.add(index)

    for number in range(80):
        for index in dice.sample(partitions, dice.randrange(3)):
            client.produce(name, batch([b"%d-%d" % (index, number) * 10]), partition=index)
            written[index].append(b"%d-%d" % (index, number) * 10)
        dropped = [index for index in sorted(wanted) if dice.random() < 0.05] if len(wanted) > 3 else []
        wanted.difference_update(dropped[:1])
        dropped = dropped[:1]
        moved.difference_update(dropped)
        if dice.random() < 0.2:
            back = set(partitions) - wanted - set(dropped)
            wanted |= back
            moved |= back
        turn()
    dropped = []
    moved |= set(partitions) - wanted
    wanted |= set(partitions)
    while sum(map(len, read.values())) < sum(map(len, written.values())):
        turn()
    assert read == written


def test_a_new_beginning_of_a_log_is_told_although_there_is_nothing_to_read(ours: TestedServer, name: str) -> None:
    with ours.connect() as client:
        client.create_topic(name)
        client.produce(name, batch([b"first"]))
        consumer = Consumer(client, name)
        assert consumer.fetch({0: 1})[0].log_start_offset == 0
        assert consumer.fetch() == {}
        topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}]
        assert client.call(21, 1, topics=topics, timeout=10_000).topics[0].partitions[0].error_code == NONE
        assert consumer.fetch()[0].log_start_offset == 1
        assert consumer.fetch() == {}


def test_what_retention_takes_is_told_although_there_is_nothing_to_read() -> None:
    with fencepost.Server(background_interval_ms=20) as server, RawClient(server.address) as client:
        client.create_topic("t", configs={"segment.bytes": "1000"})
        for _ in range(5):
            client.produce("t", batch([b"x" * 900]))
        consumer = Consumer(client, "t")
        assert consumer.fetch({0: 5})[0].log_start_offset == 0
        assert consumer.fetch() == {}
        changed = [{"name": "retention.bytes", "config_operation": 0, "value": "2000"}]
        topic = {"resource_type": 2, "resource_name": "t", "configs": changed}
        assert client.call(44, 1, resources=[topic], validate_only=False).responses[0].error_code == NONE
        answer: dict[int, Fetched] = {}
        while not answer:  # the test's own timeout ends it if it is never told
            answer = consumer.fetch(max_wait_ms=20)
        assert answer[0].log_start_offset == 2


def test_a_deleted_topic_ends_the_waiting_of_its_session(ours: TestedServer, name: str) -> None:
    with ours.connect() as client, ours.connect() as other:
        client.create_topic(name)
        consumer = Consumer(client, name)
        consumer.fetch({0: 0})
        consumer.send({}, max_wait_ms=LONG)
        other.call(DELETE_TOPICS, 1, topic_names=[name], timeout=10_000)
        assert consumer.receive()[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        other.create_topic(name)
        other.produce(name, batch([b"again"]))
        assert consumer.fetch()[0].values == [b"again"]


@pytest.mark.parametrize("limit", ["sessions", "partitions"])
def test_a_client_that_there_is_no_session_for_goes_on_without(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if limit == "partitions":
        monkeypatch.setattr("fencepost.server.broker._MOST_FETCH_SESSION_PARTITIONS", 1)
    most = 1 if limit == "sessions" else 1000
    with (
        fencepost.Server(max_fetch_sessions=most) as server,
        RawClient(server.address) as one,
        RawClient(server.address) as two,
    ):
        one.create_topic("topic", partitions=2)
        one.produce("topic", batch([b"a"]))
        first, second = Consumer(one, "topic"), Consumer(two, "topic")
        assert first.fetch({0: 0})[0].values == [b"a"]
        assert second.fetch({0: 0})[0].values == [b"a"]
        assert (first.session_id != 0, second.session_id) == (True, 0)
        if limit == "partitions":
            first.fetch({0: 1, 1: 0})
            assert first.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # and begins anew
        one.close()
        while not second.session_id:  # the place of the one who has left
            second.epoch = 0
            second.fetch({0: 0})
