"""What the tests of faults share: chance with a seed that is printed, a server of its own process, groups' worlds."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

import fencepost
from tests.conftest import Kafka
from tests.support.processing_history import World

SESSION = 1.0
BATCH = 4.0


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("FENCEPOST_SEED", time.time_ns() % 2**32))
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(
    params=[
        "consumer",
        pytest.param("cooperative", marks=pytest.mark.long),
        pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.long]),
    ]
)
def world(request: pytest.FixtureRequest, fencepost_server_factory: Callable[..., fencepost.Server]) -> World:
    """Both protocols on our server, and the classic one on Apache Kafka, where sessions of the other are long."""
    if request.param == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka_with_short_sessions")
        return World(kafka.address, "cooperative", SESSION, BATCH)
    server = fencepost_server_factory(
        group_min_session_timeout_ms=100,
        group_consumer_session_timeout_ms=int(SESSION * 1000),
        group_consumer_heartbeat_interval_ms=200,
    )
    return World(server.address, request.param, SESSION, BATCH)
