"""Holding something on Apache Kafka, as far as it goes without one: which session there is."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client import own_kafka
from fencepost.client.hold_kafka import hold_on_kafka
from fencepost.client.session import Session
from fencepost.client.settings import ClientSettings
from fencepost.core.claim import Held, demand
from fencepost.core.claim_steps import Owned
from fencepost.core.pid import Identity
from fencepost.types import Epoch, Generation, Pid

pytestmark = pytest.mark.unit

TAKEN_INSTEAD = 6.0


class Coordinated(Session):
    """Its coordinator takes no short session."""

    def begin(self) -> None:
        self.seconds = max(self.seconds, TAKEN_INSTEAD)


def test_a_holder_knows_the_session_that_the_broker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that goes by a shorter one ends the command between two signs of life (OWN-8)."""

    def granted(*_: Any) -> Owned:
        return Owned([Held("it", Generation(1), 1)], (Identity(Pid(7), Epoch(0)),))

    monkeypatch.setattr(own_kafka, "Session", Coordinated)
    monkeypatch.setattr(own_kafka.KafkaOwner, "_claimed", granted)
    monkeypatch.setattr(own_kafka.KafkaOwner, "release_all", lambda _owner: None)
    with hold_on_kafka(ClientSettings.of("127.0.0.1:1"), demand("jobs", ["it"], generation=1, session=0.5)) as held:
        assert held.session == TAKEN_INSTEAD
