"""How a sink reaches its cluster: by the names of Kafka's clients, or by those that Spark's connector had."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.security import Sasl, Tls
from fencepost.client.micro_batch.targets import reached
from fencepost.errors import ConfigError
from fencepost.spark.options import parse_source

pytestmark = pytest.mark.unit

SECURED = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="p\\"w";'
    ),
    "kafka.ssl.truststore.location": "ca.pem",
    "kafka.ssl.truststore.type": "PEM",
}


def test_source_and_sink_understand_the_same_options() -> None:
    by_source = parse_source({**SECURED, "kafka.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=True).settings
    by_sink = reached("h:1", SECURED)
    without_prefix = reached("h:1", {name.removeprefix("kafka."): value for name, value in SECURED.items()})
    assert by_source.servers == by_sink.servers
    assert by_source.security == by_sink.security == without_prefix.security
    assert by_sink.security.sasl == Sasl("PLAIN", "alice", 'p"w')
    assert isinstance(by_sink.security.tls, Tls)
    assert by_sink.security.tls.ca_file == "ca.pem"


def test_settings_of_their_own_are_taken_as_they_are() -> None:
    settings = reached("h:1", SECURED)
    assert reached(settings) is settings


def test_a_java_keystore_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="PEM"):
        reached("h:1", {**SECURED, "kafka.ssl.truststore.type": "JKS"})


@pytest.mark.parametrize("prefix", ["", "kafka."])
def test_settings_that_tune_kafkas_producer_are_passed_over_with_a_warning(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As the source does with those of the consumer: what Spark's connector was told may stay."""
    tuning = ["acks", "linger.ms", "compression.type", "batch.size", "max.in.flight.requests.per.connection"]
    tuning += ["transactional.id", "key.serializer", "reconnect.backoff.ms", "metric.reporters", "partitioner.class"]
    given = {f"{prefix}{name}": "1" for name in tuning} | {f"{prefix}client.id": "me", f"{prefix}retry.backoff.ms": "7"}
    settings = reached("h:1", given)
    assert (settings.client_id, settings.retry_backoff) == ("me", 0.007)
    for name in tuning:
        assert f"setting {name} is for Kafka's producer and is ignored" in caplog.text
    assert "compression.type is for Kafka's producer and is ignored; the sink's own option is compression=" in (
        caplog.text
    )


def test_a_setting_that_nobody_knows_is_still_an_error() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        reached("h:1", {"kafka.bootstrap.server": "h:1"})
    with pytest.raises(ConfigError, match=r"lingr\.ms"):
        reached("h:1", {"lingr.ms": "5"})
