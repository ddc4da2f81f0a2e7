"""The stage topic of a sink, where several tasks look for it at once (PIPE-2)."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client.micro_batch import stage_topic
from fencepost.client.micro_batch.targets import Target
from fencepost.errors import ConfigError, ErrorCode, ServerError

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

    monkeypatch.setattr(stage_topic, "describe", describe)
    monkeypatch.setattr(stage_topic, "create_lasting_topic", create)
    monkeypatch.setattr(stage_topic, "_FIRST_PAUSE", 0.001)
    nobody: Any = None
    assert stage_topic.open_stage(nobody, "s", TARGETS, 60.0) == stage
    assert created == [("__fencepost_stage.s", 3, "2024")]
    answers.extend([ConfigError("absent")] * 10_000)
    monkeypatch.setattr(stage_topic, "_ABSENT_PATIENCE", 0.01)
    with pytest.raises(ConfigError, match="absent"):
        stage_topic.open_stage(nobody, "s", TARGETS, 60.0)
    answers[:] = [ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")]
    with pytest.raises(ServerError, match="grant CREATE, DESCRIBE, READ and WRITE"):
        stage_topic.open_stage(nobody, "s", TARGETS, 60.0)


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

    monkeypatch.setattr(stage_topic, "describe", describe)
    monkeypatch.setattr(stage_topic, "create_lasting_topic", create)
    nobody: Any = None
    allowed, compacted = 2, False
    assert stage_topic.open_stage(nobody, "s", TARGETS, 60.0).max_bytes == 1_000
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
        stage_topic.open_stage(nobody, "s", TARGETS, 60.0)
    allowed, compacted = 2, True
    with pytest.raises(ConfigError, match="is compacted"):
        stage_topic.open_stage(nobody, "s", TARGETS, 60.0)
