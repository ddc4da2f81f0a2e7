"""The content of a micro-batch of foreachBatch, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import Target, TargetFinder
from fencepost.spark import columns
from fencepost.spark.freeze import FrozenBatch, Manifest, ManifestEntry
from fencepost.spark.options import SinkOptions
from fencepost.spark.sink import DataFrameContent, RowHabits
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit


def test_topics_that_rows_name_are_looked_up_again_for_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may have been recreated since the attempt before, with fewer partitions."""
    ids = [UUID(int=1), UUID(int=2)]

    def of_rows(_finder: TargetFinder, names: set[str], _admin: object) -> dict[str, Target]:
        return {name: Target(name, 1, 1_000, compacted=False, topic_id=ids.pop(0)) for name in names}

    monkeypatch.setattr(TargetFinder, "of_rows", of_rows)
    monkeypatch.setattr(columns, "partitions_of", lambda _df: None)
    monkeypatch.setattr(columns, "used", lambda *_, **__: {"value": "value", "topic": "topic"})
    entry = ManifestEntry(0, 1, 1, 100, 0)
    monkeypatch.setattr(
        DataFrameContent,
        "_frozen_by_tasks",
        lambda *_: Manifest({TopicPartition("t", 0): (FrozenBatch(TopicPartition("t", 0), entry, None),)}),
    )
    runner: Any = SimpleNamespace(settings=ClientSettings.of("127.0.0.1:1"), name="n", admin=None, cluster_id="c")
    df: Any = SimpleNamespace(schema=None)
    content = DataFrameContent(runner, SinkOptions(driver_bytes=0), RowHabits(), df, "q", 0)
    assert [content.freeze("").topics for _ in range(2)] == [f"c t={UUID(int=1)}", f"c t={UUID(int=2)}"]
