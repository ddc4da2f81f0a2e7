"""Servers and Spark sessions for the tests of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import fencepost
from tests.support.spark import archive_classes, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNDISTURBED = 24 * 60 * 60 * 1000
"""No housekeeping while tests run: some of them write records of long ago, which have had their time."""


MANY_DRIVERS = 20


@pytest.fixture(scope="session")
def _our_server() -> Iterator[str]:
    with fencepost.Server(background_interval_ms=UNDISTURBED) as running:
        yield running.address


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    """The address of fencepost's server and of Apache Kafka, in turn."""
    if request.param == "kafka":
        address: str = request.getfixturevalue("kafka").address
        return address
    return str(request.getfixturevalue("_our_server"))


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.long])])
def everywhere(request: pytest.FixtureRequest) -> str:
    """As `servers`, for what takes long: on Apache Kafka in `make test-long` only."""
    return str(
        request.getfixturevalue("kafka").address if request.param == "kafka" else request.getfixturevalue("ours")
    )


@pytest.fixture
def ours(_our_server: str) -> str:
    return _our_server


@pytest.fixture(scope="session", autouse=True)
def _archive_of_classes(request: pytest.FixtureRequest) -> None:
    """Make the archive where many drivers start, as in `make test-long`: it costs as much as eight of them save."""
    if sum(item.get_closest_marker("long") is not None for item in request.session.items) >= MANY_DRIVERS:
        archive_classes()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that do not kill it."""
    running = session()
    yield running
    running.stop()
