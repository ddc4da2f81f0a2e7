"""The plan of a migration, made while programs go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fencepost.cli.migrate_plan import MigrationPlan, make_plan
from fencepost.client.admin_client import Admin
from fencepost.core.rows import GroupOffset, GroupSummary
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Offset

pytestmark = pytest.mark.unit


class BusySource:
    """A source with one partition per topic. Every question finds its log, and its group, one record further."""

    def __init__(self, *topics: str, stable: int | None = None) -> None:
        self._topics = topics
        self._end = 100
        self._stable = stable
        """The last stable offset, while a transaction is open."""

    def _moment(self) -> Offset:
        self._end += 1
        return Offset(self._end)

    def topics(self, *, internal: bool) -> list[Any]:
        return [SimpleNamespace(name=name, partitions=1) for name in self._topics]

    def topic_configs(self, name: str) -> list[Any]:
        return []

    def describe_topic(self, name: str) -> Any:
        return SimpleNamespace(partitions=[0])

    def earliest(self, name: str) -> dict[int, int]:
        return {0: 0}

    def latest(self, name: str, *, read_committed: bool = False) -> dict[int, int]:
        now = self._moment()
        return {0: self._stable if read_committed and self._stable is not None else now}

    def groups(self) -> list[GroupSummary]:
        return [GroupSummary("readers", "Stable", "classic", "consumer")]

    def group_offsets(self, group: str) -> list[GroupOffset]:
        now = self._moment()
        return [GroupOffset(name, 0, now, now) for name in self._topics if not name.startswith("__")]

    def acls(self) -> list[Any]:
        raise ServerError(ErrorCode.SECURITY_DISABLED)

    def quotas(self) -> list[Any]:
        return []

    def users(self) -> dict[str, Any]:
        return {}


class EmptyTarget:
    def topics(self, *, internal: bool) -> list[Any]:
        return []

    def groups(self) -> list[Any]:
        return []

    def create_topics(self, topics: list[Any], *, validate_only: bool) -> None:
        assert validate_only


def plan(source: BusySource, *patterns: str) -> MigrationPlan:
    return make_plan(cast("Admin", source), cast("Admin", EmptyTarget()), patterns, without_guards=False)


def items(found: MigrationPlan, kind: str) -> list[tuple[str, str]]:
    return [(item.fate, item.detail) for item in found.items if item.kind == kind]


def test_a_group_that_goes_on_is_not_taken_for_one_beyond_the_log() -> None:
    found = plan(BusySource("orders"))
    assert items(found, "group") == [("keep", "1 committed offset, unchanged; it is Stable: stop its consumers first")]


def test_records_that_come_meanwhile_are_no_open_transaction() -> None:
    assert items(plan(BusySource("orders")), "transaction") == []


def test_an_offset_beyond_an_open_transaction_waits_for_the_next_run() -> None:
    found = plan(BusySource("orders", stable=50))
    assert items(found, "transaction") == [
        ("copy", "up to an open transaction: commit or abort it (fencepost transactions list --open), then run again")
    ]
    assert items(found, "group") == [
        ("left", "not set: 1 committed offset, beyond an open transaction, where the copy ends; run it again")
    ]
    assert found.groups == {}


def test_a_sinks_progress_that_was_not_chosen_is_named() -> None:
    found = plan(BusySource("orders", "__fencepost_sink.job"), "orders")
    assert items(found, "sink progress") == [
        ("left", "not chosen; its Spark job needs it on the target: --topic '__fencepost_sink.job'")
    ]
