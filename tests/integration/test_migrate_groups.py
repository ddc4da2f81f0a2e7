"""`fencepost migrate` and consumer groups: offsets with their metadata, and never back."""

from __future__ import annotations

import json

import confluent_kafka
import pytest

import fencepost
from tests.conftest import Engine
from tests.support.migration import migrate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def topic(source: fencepost.Server, name: str) -> str:
    """A topic with two partitions of ten records, and a group that has read five of each."""
    with fencepost.Admin(source.address) as admin, fencepost.Producer(source.address) as producer:
        admin.create_topic(name, 2)
        for number in range(20):
            producer.send(name, b"%d" % number, partition=number % 2)
        producer.flush()
        admin.commit_group_offsets(name, name, {0: 5, 1: 5}, metadata={0: "half way"})
    return name


def offsets(address: str, group: str) -> dict[int, tuple[int | None, str]]:
    with fencepost.Admin(address) as admin:
        return {each.partition: (each.committed, each.metadata) for each in admin.group_offsets(group)}


def test_metadata_of_offsets_is_carried_over(source: fencepost.Server, engine: Engine, topic: str) -> None:
    migrate(source.address, engine.address, "--topic", topic)
    assert offsets(engine.address, topic) == {0: (5, "half way"), 1: (5, "")}


def test_a_second_run_never_sets_a_group_back(source: fencepost.Server, engine: Engine, topic: str) -> None:
    """Consumers have started on the target; partition 1 was read further on the source meanwhile."""
    migrate(source.address, engine.address, "--topic", topic)
    with fencepost.Admin(engine.address) as there, fencepost.Admin(source.address) as admin:
        there.commit_group_offsets(topic, topic, {0: 8})
        admin.commit_group_offsets(topic, topic, {0: 6, 1: 7})
    again = migrate(source.address, engine.address, "--topic", topic, "--json")
    assert offsets(engine.address, topic) == {0: (8, ""), 1: (7, "")}
    result = json.loads(again.stdout)
    assert result["groups_ahead"] == [topic]
    said = [each["detail"] for each in result["plan"] if (each["kind"], each["fate"]) == ("group", "left")]
    assert said == [
        "not set back: 1 committed offset, further on the target: consumers went on there (--set-groups-back)"
    ]
    migrate(source.address, engine.address, "--topic", topic, "--set-groups-back")
    assert offsets(engine.address, topic) == {0: (6, ""), 1: (7, "")}


def test_a_group_with_members_on_the_target_is_left_and_named(
    source: fencepost.Server, engine: Engine, topic: str
) -> None:
    migrate(source.address, engine.address, "--topic", topic)
    with fencepost.Admin(source.address) as admin:
        admin.commit_group_offsets(topic, topic, {0: 9})
    settings = {"bootstrap.servers": engine.address, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        assert consumer.poll(60) is not None
        done = migrate(source.address, engine.address, "--topic", topic, code=1)
        assert done.stderr == (
            f"fencepost: offsets of {topic} were not set: it has members on the target. Stop them, and run it again\n"
        )
        assert "not set: 1 committed offset, because the group has members on the target" in done.stdout
        assert offsets(engine.address, topic)[0] == (5, "half way")
    finally:
        consumer.close()
    migrate(source.address, engine.address, "--topic", topic)
    assert offsets(engine.address, topic)[0] == (9, "")
