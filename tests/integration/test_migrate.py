"""`fencepost migrate` to a real Apache Kafka: every record once, at its own offset, and what goes with it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import confluent_kafka
import pytest

import fencepost
from tests.conftest import Kafka
from tests.support.migration import abort, command, log, migrate, write_with_gaps
from tests.support.process import Child

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(300)]


def test_every_record_keeps_its_offset_whatever_lies_between(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    topics = {kind: f"{name}-{kind}" for kind in ("gaps", "cut", "begins", "empty", "wide")}
    with fencepost.Admin(source.address) as admin, fencepost.Producer(source.address) as producer:
        admin.create_topic(topics["gaps"], 1, configs={"retention.ms": "86400000"})
        for kind in ("cut", "begins", "empty"):
            admin.create_topic(topics[kind], 1)
        admin.create_topic(topics["wide"], 3, configs={"retention.ms": "-1"})  # its records are old
        with fencepost.Producer(source.address, name="first") as writer:
            abort(writer, topics["begins"], 1)
        producer.send(topics["begins"], b"first", partition=0).result()
        write_with_gaps(source.address, topics["gaps"])
        for number in range(300):
            producer.send(
                topics["wide"], b"%d" % number, key=b"%d" % (number % 17), timestamp=1_700_000_000_000 + number
            )
            producer.send(topics["cut"], b"%d" % number, partition=0)
        producer.flush()
        admin.delete_records(topics["cut"], {0: 123})
        admin.commit_group_offsets(f"{name}-group", topics["gaps"], {0: 5})
        admin.commit_group_offsets(f"{name}-group", topics["cut"], {0: 200})
    before = {topic: log(source.address, topic) for topic in topics.values()}
    done = migrate(source.address, kafka.address, "--topic", f"{name}-*", "--json")
    assert {topic: log(kafka.address, topic) for topic in topics.values()} == before
    with fencepost.Admin(kafka.address) as admin:
        offsets = {(each.topic, each.committed) for each in admin.group_offsets(f"{name}-group")}
        configs = {each.name: each.value for each in admin.topic_configs(topics["gaps"]) if each.source == "topic"}
    assert offsets == {(topics["gaps"], 5), (topics["cut"], 200)}
    assert {name: configs.get(name) for name in ("cleanup.policy", "retention.ms", "retention.bytes")} == {
        "cleanup.policy": "delete",
        "retention.ms": "86400000",
        "retention.bytes": "-1",  # as by default at the source, whatever is the default of the target
    }
    assert not any(config.startswith("message.timestamp.") for config in configs)
    assert json.loads(done.stdout)["groups"] == 1


def test_a_consumer_goes_on_where_it_was(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    write_with_gaps(source.address, name)

    def read(address: str, count: int) -> list[bytes | None]:
        settings = {"bootstrap.servers": address, "group.id": name, "auto.offset.reset": "error"}
        consumer = confluent_kafka.Consumer(
            {**settings, "enable.auto.commit": False, "isolation.level": "read_committed"}
        )
        with fencepost.Admin(address) as admin:
            at = next((each.committed for each in admin.group_offsets(name)), 0)
        consumer.assign([confluent_kafka.TopicPartition(name, 0, at or 0)])
        found = []
        for _ in range(count):
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
            consumer.commit(message, asynchronous=False)
        consumer.close()
        return found

    expected = [b"plain 0", b"plain 1", b"plain 2", b"committed 0", None, *(b"committed %d" % n for n in range(3))]
    expected += [None, b"after aborts", b"last"]
    first = read(source.address, 4)
    migrate(source.address, kafka.address, "--topic", name)
    assert first + read(kafka.address, len(expected) - 4) == expected


def test_a_second_run_copies_only_what_is_new(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    for _ in range(3):
        write_with_gaps(source.address, name)
        done = migrate(source.address, kafka.address, "--topic", name, "--json")
        assert json.loads(done.stdout)["records"] == 11
        assert log(kafka.address, name) == log(source.address, name)
    again = migrate(source.address, kafka.address, "--topic", name, "--json")
    assert json.loads(again.stdout)["records"] == 0


@pytest.mark.fault
def test_a_killed_migration_continues(source: fencepost.Server, kafka: Kafka, name: str, tmp_path: Path) -> None:
    with fencepost.Admin(source.address) as admin, fencepost.Producer(source.address) as producer:
        admin.create_topic(name, 2)
        for number in range(100_000):
            producer.send(name, b"%d" % number, partition=number % 2)
        producer.flush()
    child = Child(command(source.address, kafka.address, "--topic", name), log=tmp_path / "log")
    with fencepost.Admin(kafka.address) as admin:
        deadline = time.monotonic() + 100
        while name not in {each.name for each in admin.topics()} or admin.latest(name)[0] == 0:
            assert time.monotonic() < deadline, child.output()
    child.kill()
    migrate(source.address, kafka.address, "--topic", name)
    assert log(kafka.address, name) == log(source.address, name)


def test_a_dry_run_shows_the_plan_and_changes_nothing(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    with fencepost.Admin(source.address) as admin:
        admin.create_topic(name, 2, configs={"fencepost.writer.group": "writers"})
        admin.set_user_password("alice", "wonderland-1865")
    shown = migrate(source.address, kafka.address, "--dry-run", "--json")
    plan = {(each["kind"], each["name"], each["fate"]) for each in json.loads(shown.stdout)}
    assert plan == {("topic", name, "copy"), ("guard", name, "refused"), ("user", "alice", "lost")}
    with fencepost.Admin(kafka.address) as admin:
        assert name not in {each.name for each in admin.topics()}


def test_guarded_topics_are_refused_unless_told_otherwise(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    with fencepost.Admin(source.address) as admin, fencepost.Producer(source.address) as producer:
        admin.create_topic(name, 1, configs={"fencepost.writer.group": "writers"})
        producer.own("writers", [f"{name}-0"], generation=0)
        producer.send(name, b"guarded", partition=0).result()
    refused = migrate(source.address, kafka.address, code=1)
    assert refused.stderr.startswith(f"fencepost: nothing was copied: {name}: fencepost.writer.group=writers: ")
    assert refused.stderr.count("\n") == 1
    with fencepost.Admin(kafka.address) as admin:
        assert name not in {each.name for each in admin.topics()}
    migrate(source.address, kafka.address, "--without-guards")
    assert log(kafka.address, name) == log(source.address, name)


def test_a_target_with_other_records_is_left_alone(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    for address, value in ((source.address, b"ours"), (kafka.address, b"theirs")):
        with fencepost.Admin(address) as admin, fencepost.Producer(address) as producer:
            admin.create_topic(name, 1)
            producer.send(name, value, partition=0).result()
    before = log(kafka.address, name)
    done = migrate(source.address, kafka.address, code=1)
    assert f"{name}-0 on the target is not a copy that can be continued: its record 0 is" in done.stderr
    assert log(kafka.address, name) == before


def test_an_open_transaction_is_copied_by_the_next_run(source: fencepost.Server, kafka: Kafka, name: str) -> None:
    with (
        fencepost.Producer(source.address, name="open", transaction_timeout=600) as producer,  # migrations take a while
        fencepost.Producer(source.address) as plain,
    ):
        plain.send(name, b"before").result()
        with producer.transaction():
            producer.send(name, b"undecided").result()
            done = migrate(source.address, kafka.address, "--topic", name, code=1)
            assert [record[3] for record in log(kafka.address, name)[0][2]] == [b"before"]  # type: ignore[index]
    assert f"{name} got new records meanwhile, or has an open transaction: stop the producers" in done.stderr
    migrate(source.address, kafka.address, "--topic", name)
    assert log(kafka.address, name) == log(source.address, name)


def test_source_and_target_must_differ(source: fencepost.Server, kafka: Kafka) -> None:
    done = migrate(kafka.address, kafka.address, code=1)
    assert done.stderr == "fencepost: source and target are the same cluster: SERVERS must name another one\n"


def test_a_topic_that_the_target_rejects_is_refused_before_any_change(
    source: fencepost.Server, kafka: Kafka, name: str
) -> None:
    with fencepost.Admin(source.address) as admin:
        admin.create_topic(f"{name}-fine", 1)
        admin.create_topic(f"{name}-small", 1, configs={"segment.bytes": "2000"})
    done = migrate(source.address, kafka.address, code=1)
    assert done.stderr.startswith(f"fencepost: nothing was copied: {name}-small: the target rejects it: ")
    assert "segment.bytes" in done.stderr
    assert done.stderr.endswith(". Change the topic on the source (fencepost topic alter)\n")
    with fencepost.Admin(kafka.address) as admin:
        assert not {each.name for each in admin.topics()} & {f"{name}-fine", f"{name}-small"}
