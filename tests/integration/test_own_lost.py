"""A lost claim tells without sending, on both engines: with a session Kafka's group coordinator is asked (OWN-8)."""

from __future__ import annotations

import queue

import pytest

import fencepost
from tests.conftest import Engine

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def test_an_idle_producer_and_an_idle_reader_learn_that_they_were_replaced(engine: Engine, name: str) -> None:
    told: queue.SimpleQueue[fencepost.Fenced] = queue.SimpleQueue()
    with fencepost.Admin(engine.address) as admin:
        admin.create_topic(name, 1)
    with (
        fencepost.Producer(engine.address) as producer,
        fencepost.Reader(engine.address, name) as reader,
        fencepost.Producer(engine.address) as other,
    ):
        written = producer.own(f"w-{name}", [f"{name}-0"], generation=1, session=2, on_lost=told.put)
        read = reader.own(f"r-{name}", [f"{name}-0"], generation=1, session=30, on_lost=told.put)
        other.own(f"w-{name}", [f"{name}-0"], generation=1)
        assert isinstance(told.get(timeout=60), fencepost.Fenced)
        assert written.lost.is_set()
        other.own(f"r-{name}", [f"{name}-0"], generation=1)
        while not read.lost.is_set():
            try:
                reader.check_owned()
            except fencepost.Fenced:
                assert read.lost.wait(60)
        assert isinstance(told.get(timeout=60), fencepost.Fenced)
