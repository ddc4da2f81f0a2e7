"""What is remembered of the use of quotas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.quotas import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, Limit, entity_of
from fencepost.server.security.quotas import _MOST_BUCKETS, QuotaChange, Quotas

pytestmark = pytest.mark.unit


def test_client_ids_do_not_flush_out_the_debt_of_a_user() -> None:
    store: Any = SimpleNamespace(query=lambda statement: [])
    clock: Any = SimpleNamespace(monotonic=lambda: 0.0)
    quotas = Quotas(store, clock, lambda: 10.0)
    quotas._apply(
        [
            QuotaChange(entity_of({"user": "alice"}), PRODUCER_BYTE_RATE, 1000.0),
            QuotaChange(entity_of({"client-id": None}), REQUEST_PERCENTAGE, 200.0),
        ]
    )

    def limit(client_id: str, key: str) -> Limit:
        found = quotas.table.of_client("alice", client_id, key)
        assert found is not None
        return found

    assert quotas.spend(limit("a", PRODUCER_BYTE_RATE), 1_000_000) == 990.0
    for number in range(_MOST_BUCKETS + 1):
        quotas.spend(limit(str(number), REQUEST_PERCENTAGE), 0.01)
    assert quotas.spend(limit("b", PRODUCER_BYTE_RATE), 0) == 990.0
    assert len(quotas._buckets) == _MOST_BUCKETS
