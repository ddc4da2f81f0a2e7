"""Metadata while ACLs change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from fencepost.core.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from fencepost.server.api import k03_metadata
from fencepost.wire import messages
from fencepost.wire.apis import Key
from tests.support.broker_bed import BrokerBed, running

pytestmark = pytest.mark.unit

VERSION = 12
WITHOUT = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}


async def test_a_right_that_is_withdrawn_during_a_request_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    right = Acl(
        ResourceType.TOPIC, PatternType.LITERAL, "t", "User:*", "*", Operation.DESCRIBE, Permission.ALLOW
    )  # fmt: skip
    withdrawals: list[BrokerBed] = []

    async def then_withdraw(items: Iterable[Any]) -> AsyncIterator[Any]:
        for item in items:
            yield item
        while withdrawals:
            await withdrawals.pop().broker.authorizer.delete([right])

    monkeypatch.setattr(k03_metadata, "paced", then_withdraw)

    async def listed(bed: BrokerBed) -> list[str]:
        answer: Any = await bed.call(bed.connect(), Key.METADATA, VERSION, topics=None, **WITHOUT)
        decoded = messages.decode_response(Key.METADATA, VERSION, memoryview(b"".join(answer)))
        return [topic.name for topic in decoded.topics]

    async with running(lambda: BrokerBed(tmp_path, authorization_enabled=True)) as bed:
        await bed.broker.authorizer.create([right])
        assert await listed(bed) == ["t"]
        withdrawals.append(bed)
        assert await listed(bed) == []
        assert await listed(bed) == []
