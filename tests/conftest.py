"""What all tests share: the count of kinds and the real Apache Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support import counts
from tests.support.kafka import KafkaBroker, KafkaUnavailable, jars


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fencepost")
    group.addoption("--floors", action="store_true", help="fail if fewer tests ran than tests/floors.toml demands")
    group.addoption(
        "--compat-on-kafka",
        action="store_true",
        help="run the compat tests against Apache Kafka, to see whether a failure is ours or the client's",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist reports to the controller, which counts for all
        floors = counts.read_floors() if config.getoption("floors") else {}
        config.pluginmanager.register(counts.Counts(floors), "fencepost-counts")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    counts.label(items)
    for item in items:
        if item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.xdist_group("kafka"))  # one broker, in one worker (--dist loadgroup)


def without_kafka(reason: str) -> None:
    """Fails a test that needs Java or Maven where they are missing; skips it where a person has chosen that."""
    if os.environ.get("FENCEPOST_ALLOW_SKIP") == "1" and os.environ.get("CI", "").lower() != "true":
        pytest.skip(reason)
    pytest.fail(f"{reason}; FENCEPOST_ALLOW_SKIP=1 skips them (never with CI=true)", pytrace=False)


@pytest.fixture(scope="session")
def _kafka_or_reason(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker | str]:
    # The reason is handed on instead of raised, so that a second test does not try to start the broker again.
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
    except KafkaUnavailable as error:
        yield str(error)
        return
    yield broker
    broker.stop()


@pytest.fixture
def kafka(_kafka_or_reason: KafkaBroker | str) -> KafkaBroker:
    """The session's Apache Kafka broker. Tests share it: each uses topics of its own."""
    if isinstance(_kafka_or_reason, str):
        without_kafka(_kafka_or_reason)
    assert isinstance(_kafka_or_reason, KafkaBroker)
    return _kafka_or_reason


@pytest.fixture
def kafka_jars() -> str:
    """The class path of Kafka's own clients and tools."""
    try:
        return f"{jars()}/*"
    except KafkaUnavailable as error:
        without_kafka(str(error))
        raise
