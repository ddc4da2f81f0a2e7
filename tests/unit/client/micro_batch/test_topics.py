"""The stage topic of a sink: its rules, and several tasks that look for it at once (PIPE-2)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client.micro_batch import topics
from fencepost.client.micro_batch.targets import Target
from fencepost.client.micro_batch.topics import Staged, ends_of, partition_for, partitions_for, share_of
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit

TARGETS = (Target("a", 3, 1_000, compacted=False),)


def test_a_task_waits_for_the_stage_that_another_task_has_just_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller has it, and the broker that is asked learns of it late: first of its name, then of its configs."""
    stage = Target("s", 3, 2_024, compacted=False)
    unknown = ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "configs")
    answers: list[Any] = [ConfigError("absent"), ConfigError("absent"), unknown, stage]
    created: list[tuple[str, int, str]] = []

    def describe(_admin: object, topic: str) -> Target:
        assert topic == "__fencepost_stage.s"
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Target)
        return answer

    def create(_admin: object, topic: str, partitions: int, *, configs: dict[str, str]) -> bool:
        created.append((topic, partitions, configs["max.message.bytes"]))
        return False

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(topics, "create_lasting_topic", create)
    monkeypatch.setattr(topics, "_FIRST_STAGE_PAUSE", 0.001)
    nobody: Any = None
    assert topics.open_stage(nobody, "s", TARGETS, 60.0) == stage
    assert created == [("__fencepost_stage.s", 3, "2024")]
    answers.extend([ConfigError("absent")] * 10_000)
    monkeypatch.setattr(topics, "_ABSENT_PATIENCE", 0.01)
    with pytest.raises(ConfigError, match="absent"):
        topics.open_stage(nobody, "s", TARGETS, 60.0)
    answers[:] = [ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")]
    with pytest.raises(ServerError, match="grant CREATE, DESCRIBE, READ and WRITE"):
        topics.open_stage(nobody, "s", TARGETS, 60.0)


def test_a_cluster_that_allows_few_configs_gets_a_stage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []
    there: list[Target] = []

    def describe(_admin: object, _topic: str) -> Target:
        if not there:
            raise ConfigError("absent")
        return there[0]

    def create(_admin: object, topic: str, _partitions: int, *, configs: dict[str, str]) -> bool:
        asked.append(configs)
        if len(configs) > allowed:
            raise ServerError(ErrorCode.POLICY_VIOLATION, "not these")
        there.append(Target(topic, 3, 1_000, compacted=compacted))
        return True

    monkeypatch.setattr(topics, "describe", describe)
    monkeypatch.setattr(topics, "create_lasting_topic", create)
    nobody: Any = None
    allowed, compacted = 2, False
    assert topics.open_stage(nobody, "s", TARGETS, 60.0).max_bytes == 1_000
    assert [configs.get("max.message.bytes") for configs in asked] == ["2024", "1000", None]
    assert asked[0] == {
        "cleanup.policy": "delete",
        "retention.ms": "60000",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "segment.bytes": str(64 << 20),
        "max.message.bytes": "2024",
    }
    there.clear()
    allowed = 1
    with pytest.raises(ServerError, match="not these"):
        topics.open_stage(nobody, "s", TARGETS, 60.0)
    allowed, compacted = 2, True
    with pytest.raises(ConfigError, match="is compacted"):
        topics.open_stage(nobody, "s", TARGETS, 60.0)


@pytest.mark.parametrize("tasks", [1, 2, 7, 200])
def test_an_evenly_spread_micro_batch_of_the_limit_is_not_staged(tasks: int) -> None:
    limit = 64 << 20
    assert all(limit // tasks <= share_of(limit, task) for task in range(tasks))


def test_what_all_tasks_may_send_stays_below_sparks_limit_of_a_gibibyte() -> None:
    """spark.driver.maxResultSize is 1 g by default, and the driver's memory too."""
    assert sum(share_of(64 << 20, task) for task in range(10_000)) < 850 << 20


def test_a_share_is_never_more_than_the_limit_and_never_tiny() -> None:
    assert [share_of(10, task) for task in (0, 1, 500)] == [10, 10, 10]
    assert [share_of(0, task) for task in (0, 500)] == [0, 0]
    assert share_of(64 << 20, 100_000) == 32 << 10


def test_neighbouring_target_partitions_use_different_stage_partitions() -> None:
    assert [partitions_for(targets) for targets in (0, 1, 12, 500)] == [1, 1, 12, 32]
    for topic in ("a", "b", "long-name"):
        assert {partition_for(TopicPartition(topic, partition), 12) for partition in range(12)} == set(range(12))


def test_the_stage_may_be_cleared_up_to_the_last_place_of_each_partition() -> None:
    assert ends_of([Staged(0, 7), Staged(3, 0), Staged(0, 5)]) == {0: 8, 3: 1}
    assert ends_of([]) == {}
