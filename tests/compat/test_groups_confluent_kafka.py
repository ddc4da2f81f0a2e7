"""Consumer groups with confluent-kafka, that is librdkafka: both protocols, every assignor, rebalances."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

import fencepost
from tests.support.batches import batch
from tests.support.raw import RawClient

pytestmark = pytest.mark.compat

PARTITIONS = 6
RECORDS = 10
"""Per partition."""


class Reader:
    """A consumer with a thread of its own, as it would have in a process of its own; nobody else touches it.

    (A blocking call from another thread waits for as long as the consumer is polled without a pause.)
    """

    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        basics = {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if dotted.get("group.protocol") != "consumer":
            basics |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
        self.consumer = confluent_kafka.Consumer({**basics, **dotted})
        self.changed = threading.Condition()
        self.assigned: set[int] = set()
        self.revoked: list[set[int]] = []
        self.given: list[set[int]] = []
        self.lost: list[set[int]] = []
        self.records: list[tuple[int, int]] = []
        self.topics: set[str] = set()
        self.errors: list[confluent_kafka.KafkaError] = []
        self._cooperative = "cooperative" in str(settings.get("partition_assignment_strategy", "")) or (
            settings.get("group_protocol") == "consumer"
        )
        self._stop = threading.Event()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        self._thread = threading.Thread(target=self._run, name=f"reader of {group}")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            while not self._work.empty():
                self._work.get()()
            message = self.consumer.poll(0.05)
            if message is None:
                continue
            with self.changed:
                if message.error() is not None:
                    self.errors.append(message.error())
                else:
                    self.records.append((message.partition(), message.offset()))
                    self.topics.add(message.topic())
                self.changed.notify_all()

    def call(self, what: Callable[[confluent_kafka.Consumer], Any]) -> Any:
        """Calls something on the consumer in its thread; answers with the result."""
        done: Future[Any] = Future()

        def work() -> None:
            try:
                done.set_result(what(self.consumer))
            except BaseException as failure:
                done.set_exception(failure)

        self._work.put(work)
        return done.result(30)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        indexes = {partition.partition for partition in partitions}
        if self._cooperative:
            consumer.incremental_assign(partitions)
        with self.changed:
            self.given.append(indexes)
            self.assigned = self.assigned | indexes if self._cooperative else indexes
            self.changed.notify_all()

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        indexes = {partition.partition for partition in partitions}
        if self._cooperative:
            consumer.incremental_unassign(partitions)
        with self.changed:
            self.revoked.append(indexes)
            self.assigned -= indexes
            self.changed.notify_all()

    def _on_lost(self, consumer: Any, partitions: list[Any]) -> None:
        with self.changed:
            self.lost.append({partition.partition for partition in partitions})
        self._on_revoke(consumer, partitions)

    def stop(self) -> None:
        """Stops polling, and leaves the group."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
            self.consumer.close()


def await_readers(condition: Callable[[], bool], *readers: Reader) -> None:
    """Waits until the condition holds; whatever it looks at is changed by the readers."""
    for _ in range(300):
        if condition():
            return
        with readers[0].changed:
            readers[0].changed.wait(0.1)
    state = [(sorted(reader.assigned), len(reader.records), reader.errors) for reader in readers]
    pytest.fail(f"the group did not settle: {state}")


def shares(*readers: Reader) -> list[int]:
    return sorted(len(reader.assigned) for reader in readers)


def cover_everything(*readers: Reader) -> bool:
    held = [index for reader in readers for index in reader.assigned]
    return sorted(held) == list(range(PARTITIONS))


NewReader = Callable[..., Reader]


@pytest.fixture(scope="module")
def _brisk_server() -> Iterator[fencepost.Server]:
    """Ours, with quick heartbeats in the new protocol: a rebalance takes a few of them, 5 s apart by default."""
    with fencepost.Server(group_consumer_heartbeat_interval_ms=200) as server:
        yield server


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    fixture = "kafka" if request.config.getoption("compat_on_kafka") else "_brisk_server"
    found: str = request.getfixturevalue(fixture).address
    return found


@pytest.fixture
def six(raw: RawClient, name: str) -> str:
    """A topic of six partitions with ten records in each."""
    raw.create_topic(name, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        raw.produce(name, batch([str(number).encode() for number in range(RECORDS)]), partition=partition)
    return name


@pytest.fixture
def new_reader(address: str, name: str, six: str) -> Iterator[NewReader]:
    with ExitStack() as stack:

        def make(topic: str = six, **settings: Any) -> Reader:
            reader = Reader(address, f"group-{name}", topic, **settings)
            stack.callback(reader.stop)
            return reader

        yield make


@pytest.fixture
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


ALL = [
    pytest.param({"partition_assignment_strategy": "range"}, id="range"),
    pytest.param({"partition_assignment_strategy": "roundrobin"}, id="roundrobin"),
    pytest.param({"partition_assignment_strategy": "cooperative-sticky"}, id="cooperative-sticky"),
    pytest.param({"group_protocol": "consumer"}, id="consumer protocol, uniform"),
    pytest.param({"group_protocol": "consumer", "group_remote_assignor": "range"}, id="consumer protocol, range"),
]


@pytest.mark.parametrize("settings", ALL)
def test_readers_come_and_go_and_every_record_is_read(new_reader: NewReader, settings: dict[str, Any]) -> None:
    first = new_reader(**settings)
    await_readers(lambda: len(set(first.records)) == PARTITIONS * RECORDS, first)
    assert first.assigned == set(range(PARTITIONS))
    first.call(lambda consumer: consumer.commit(asynchronous=False))

    second, third = new_reader(**settings), new_reader(**settings)
    await_readers(lambda: shares(first, second, third) == [2, 2, 2] and cover_everything(first, second, third), first)
    second.stop()
    await_readers(lambda: shares(first, third) == [3, 3] and cover_everything(first, third), first, third)
    assert not any((first.errors, second.errors, third.errors))
    assert not any((first.lost, second.lost, third.lost))
    assert not second.records + third.records, "what was committed is not read again"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"partition_assignment_strategy": "cooperative-sticky"}, id="cooperative-sticky"),
        pytest.param({"group_protocol": "consumer"}, id="consumer protocol"),
    ],
)
def test_an_incremental_rebalance_takes_away_only_what_moves(new_reader: NewReader, settings: dict[str, Any]) -> None:
    first = new_reader(**settings)
    await_readers(lambda: len(first.assigned) == PARTITIONS, first)
    second = new_reader(**settings)
    await_readers(lambda: shares(first, second) == [3, 3] and cover_everything(first, second), first, second)
    taken = [indexes for indexes in first.revoked if indexes]
    assert taken == [second.assigned]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"partition_assignment_strategy": "range"}, id="classic"),
        pytest.param({"group_protocol": "consumer"}, id="consumer protocol"),
    ],
)
def test_a_static_member_restarts_without_a_rebalance(new_reader: NewReader, settings: dict[str, Any]) -> None:
    first = new_reader(group_instance_id="one", **settings)
    second = new_reader(group_instance_id="two", **settings)
    await_readers(lambda: shares(first, second) == [3, 3] and cover_everything(first, second), first, second)
    had = set(second.assigned)
    rounds = len(first.given)
    second.stop()
    again = new_reader(group_instance_id="two", **settings)
    await_readers(lambda: again.assigned == had, again)
    assert len(first.given) == rounds, "the other one was not disturbed"


def test_a_second_process_under_a_static_name_fences_the_first(new_reader: NewReader) -> None:
    first = new_reader(group_instance_id="one")
    await_readers(lambda: len(first.assigned) == PARTITIONS, first)
    second = new_reader(group_instance_id="one")
    await_readers(lambda: bool(first.errors), first)
    await_readers(lambda: len(second.assigned) == PARTITIONS, second)
    assert first.errors[0].code() in (
        confluent_kafka.KafkaError.FENCED_INSTANCE_ID,
        confluent_kafka.KafkaError._FATAL,
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_takes_up_topics_as_they_come(new_reader: NewReader, raw: RawClient, six: str, protocol: str) -> None:
    reader = new_reader(f"^{six}.*", group_protocol=protocol, topic_metadata_refresh_interval_ms=300)
    await_readers(lambda: len(set(reader.records)) == PARTITIONS * RECORDS, reader)
    raw.create_topic(f"{six}-later")
    raw.produce(f"{six}-later", batch([b"late"]))
    await_readers(lambda: reader.topics == {six, f"{six}-later"}, reader)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_new_partitions_are_read(
    new_reader: NewReader, raw: RawClient, admin: AdminClient, six: str, protocol: str
) -> None:
    reader = new_reader(group_protocol=protocol, topic_metadata_refresh_interval_ms=300)
    await_readers(lambda: len(reader.assigned) == PARTITIONS, reader)
    [growing] = admin.create_partitions([confluent_kafka.admin.NewPartitions(six, PARTITIONS + 1)]).values()
    growing.result()
    raw.await_topic(six, PARTITIONS + 1)
    raw.produce(six, batch([b"new"]), partition=PARTITIONS)
    await_readers(lambda: (PARTITIONS, 0) in reader.records, reader)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_and_their_metadata_are_kept(new_reader: NewReader, six: str, protocol: str) -> None:
    reader = new_reader(group_protocol=protocol)
    await_readers(lambda: len(reader.assigned) == PARTITIONS, reader)
    wanted = confluent_kafka.TopicPartition(six, 2, 7, metadata="where I was")
    [done] = reader.call(lambda consumer: consumer.commit(offsets=[wanted], asynchronous=False))
    assert done.error is None
    found = reader.call(
        lambda consumer: consumer.committed(
            [confluent_kafka.TopicPartition(six, index) for index in (2, 3)], timeout=10
        )
    )
    assert [(each.offset, each.metadata) for each in found] == [
        (7, "where I was"),
        (confluent_kafka.OFFSET_INVALID, None),
    ]


def test_commits_one_after_the_other_without_waiting(new_reader: NewReader, six: str) -> None:
    reader = new_reader()
    await_readers(lambda: len(reader.assigned) == PARTITIONS, reader)

    def commit_all(consumer: confluent_kafka.Consumer) -> None:
        for offset in range(1, 200):
            consumer.commit(offsets=[confluent_kafka.TopicPartition(six, 0, offset)], asynchronous=True)

    reader.call(commit_all)
    reader.call(
        lambda consumer: consumer.commit(offsets=[confluent_kafka.TopicPartition(six, 1, 1)], asynchronous=False)
    )
    found = reader.call(lambda consumer: consumer.committed([confluent_kafka.TopicPartition(six, 0)], timeout=10))
    assert found[0].offset == 199


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_are_listed_described_and_deleted(
    new_reader: NewReader, admin: AdminClient, name: str, six: str, protocol: str
) -> None:
    group = f"group-{name}"
    reader = new_reader(group_protocol=protocol, client_id="the-reader")
    await_readers(lambda: len(reader.assigned) == PARTITIONS, reader)
    reader.call(
        lambda consumer: consumer.commit(offsets=[confluent_kafka.TopicPartition(six, 0, 3)], asynchronous=False)
    )

    [listed] = [each for each in admin.list_consumer_groups().result().valid if each.group_id == group]
    assert listed.state == confluent_kafka.ConsumerGroupState.STABLE
    assert listed.type == confluent_kafka.ConsumerGroupType[protocol.upper()]

    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    assert described.partition_assignor == ("uniform" if protocol == "consumer" else "range")
    [member] = described.members
    assert (member.client_id, member.host) == ("the-reader", "/127.0.0.1")
    assert {each.partition for each in member.assignment.topic_partitions} == set(range(PARTITIONS))

    with pytest.raises(confluent_kafka.KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result()
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.NON_EMPTY_GROUP
    reader.stop()

    request = confluent_kafka.ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([request])[group].result()
    assert [(each.topic, each.partition, each.offset) for each in offsets.topic_partitions] == [(six, 0, 3)]

    moved = confluent_kafka.ConsumerGroupTopicPartitions(group, [confluent_kafka.TopicPartition(six, 0, 1)])
    admin.alter_consumer_group_offsets([moved])[group].result()
    offsets = admin.list_consumer_group_offsets([request])[group].result()
    assert [each.offset for each in offsets.topic_partitions] == [1]

    admin.delete_consumer_groups([group])[group].result()
    assert group not in {each.group_id for each in admin.list_consumer_groups().result().valid}


def test_consumers_roll_from_one_protocol_to_the_other_and_back(address: str, raw: RawClient, name: str) -> None:
    """Clients are exchanged one by one, while records come: nobody loses a partition, and no record is read twice."""
    roll(address, raw, name, "range")


def test_cooperative_consumers_roll_to_the_other_protocol_and_back(name: str) -> None:
    """On our server only: Kafka does not change the protocol of groups whose assignor has data of its own."""
    with fencepost.Server(group_consumer_heartbeat_interval_ms=200) as server, RawClient(server.address) as raw:
        roll(server.address, raw, name, "cooperative-sticky")


def roll(address: str, raw: RawClient, name: str, strategy: str) -> None:
    raw.create_topic(name, partitions=PARTITIONS)
    classic = {"partition_assignment_strategy": strategy}
    consumer = {"group_protocol": "consumer"}
    everyone: list[Reader] = []
    written = 0

    def start(settings: dict[str, str]) -> Reader:
        everyone.append(Reader(address, name, name, enable_auto_commit=True, **settings))
        return everyone[-1]

    def read_on(*readers: Reader) -> None:
        nonlocal written
        await_readers(
            lambda: sorted(index for each in readers for index in each.assigned) == [0, 1, 2, 3, 4, 5], *readers
        )
        assert all(each.assigned for each in readers)
        with fencepost.Producer(address) as producer:
            for index in range(PARTITIONS):
                producer.send(name, b"x", partition=index)
        written += PARTITIONS
        await_readers(lambda: sum(len(each.records) for each in everyone) >= written, *readers)

    try:
        present = [start(classic), start(classic)]
        await_readers(lambda: all(len(each.assigned) == 3 for each in present), *present)
        for settings in (consumer, consumer, classic, classic):
            read_on(*present)
            present.append(start(settings))
            await_readers(lambda: all(len(each.assigned) == 2 for each in present), *present)
            read_on(*present)
            present.pop(0).stop()
            await_readers(lambda: all(len(each.assigned) == 3 for each in present), *present)
        read_on(*present)
    finally:
        for each in everyone:
            each.stop()
    assert [each.errors for each in everyone] == [[]] * 6
    assert [each.lost for each in everyone] == [[]] * 6
    records = [record for each in everyone for record in each.records]
    assert sorted(records) == sorted((index, at) for index in range(PARTITIONS) for at in range(written // PARTITIONS))
