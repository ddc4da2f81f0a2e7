"""Sessions on Apache Kafka, as far as it goes without one: which one an owner has (OWN-8)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own import kafka as own_kafka
from fencepost.client.own.kafka_hold import hold_on_kafka
from fencepost.client.own.kafka_session import ClaimantSession
from fencepost.core.own.claim_request import check_claim
from fencepost.core.own.kafka_steps import ClaimOutcome
from fencepost.core.own.ownership import OwnedResource
from fencepost.core.producers.pid import Identity
from fencepost.types import Epoch, Generation, Pid

pytestmark = pytest.mark.unit

TAKEN_INSTEAD = 6.0


class Coordinated(ClaimantSession):
    """Its coordinator takes no short session."""

    def begin(self) -> None:
        self.seconds = max(self.seconds, TAKEN_INSTEAD)
        self.heard_since = time.monotonic()


def test_a_holder_knows_the_session_that_the_broker_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that goes by a shorter one ends the command between two signs of life (OWN-8)."""

    def granted(*_: Any) -> ClaimOutcome:
        return ClaimOutcome([OwnedResource("it", Generation(1), 1)], (Identity(Pid(7), Epoch(0)),))

    monkeypatch.setattr(own_kafka, "ClaimantSession", Coordinated)
    monkeypatch.setattr(own_kafka.KafkaOwner, "_claimed", granted)
    monkeypatch.setattr(own_kafka.KafkaOwner, "release_all", lambda _owner: None)
    with hold_on_kafka(
        ClientSettings.of("127.0.0.1:1"), check_claim("jobs", ["it"], generation=1, session=0.5)
    ) as held:
        assert held.session == TAKEN_INSTEAD


def test_a_waiting_claim_leaves_the_longer_session_of_an_owner_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked for 60 s may be silent for so long; and between two sessions it would be taken for gone (OWN-8)."""
    sessions: list[Noted] = []

    class Noted(Coordinated):
        is_over = False

        def begin(self) -> None:
            sessions.append(self)
            self.heard_since = time.monotonic()

        def close(self) -> None:
            self.is_over = True

    granted = iter("ab")

    def claimed(*_: Any) -> ClaimOutcome:
        return ClaimOutcome([OwnedResource(next(granted), Generation(1), 1)], (Identity(Pid(7), Epoch(0)),))

    monkeypatch.setattr(own_kafka, "ClaimantSession", Noted)
    monkeypatch.setattr(own_kafka.KafkaOwner, "_claimed", claimed)
    settings = ClientSettings.of("127.0.0.1:1")
    with Routes(settings) as routes:
        owner = own_kafka.KafkaOwner(settings, routes)
        owner.claim(check_claim("jobs", ["a"], generation=1, session=60))
        owner.claim(check_claim("jobs", ["b"], wait=5))
    assert [(each.seconds, each.is_over) for each in sessions] == [(60, False)]
