"""How a sink reaches its cluster: by the names of Kafka's clients, or by those that Spark's connector had."""

from __future__ import annotations

import pytest

from fencepost.client.security import Sasl, Tls
from fencepost.errors import ConfigError
from fencepost.spark.options import parse
from fencepost.spark.targets import reached

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
    by_source = parse({**SECURED, "kafka.bootstrap.servers": "h:1", "subscribe": "t"}, streaming=True).settings
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
