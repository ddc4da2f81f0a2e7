"""The throttle of one connection, with clocks that the test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.core.quotas import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE, entity_of
from fencepost.server.net import throttle as throttle_module
from fencepost.server.net.throttle import Throttle
from fencepost.server.security.quotas import QuotaChange, Quotas

pytestmark = pytest.mark.unit

ALICE = entity_of({"user": "alice"})


def test_a_request_is_not_charged_for_the_time_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that begins while there are no quotas is not timed, also if there is one when it ends."""
    now = 0.0
    monkeypatch.setattr(throttle_module, "perf_counter", lambda: now)
    store: Any = SimpleNamespace(query=lambda statement: [])
    clock: Any = SimpleNamespace(monotonic=lambda: now)
    session: Any = SimpleNamespace(principal=SimpleNamespace(name="alice"))
    quotas = Quotas(store, clock, lambda: 10.0)
    throttle = Throttle(quotas, session, lambda: None)
    throttle.end()  # nothing is muted here, where no loop runs
    quotas._apply([QuotaChange(ALICE, PRODUCER_BYTE_RATE, 1e9)])
    throttle.begin()
    assert throttle.settle() == 0
    quotas._apply([QuotaChange(ALICE, PRODUCER_BYTE_RATE, None)])
    now = 600.0
    quotas._apply([QuotaChange(ALICE, REQUEST_PERCENTAGE, 50.0)])
    assert throttle.settle() == 0
