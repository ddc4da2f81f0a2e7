"""librdkafka's and Java's names: what each becomes, and what is said of those that cannot be kept."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

import pytest

from fencepost.client.cluster.config_names import (
    _CLIENT,
    _PRODUCER,
    _READER,
    _SASL,
    _TLS,
    parse_jaas,
    producer_fields,
    reader_fields,
)
from fencepost.client.cluster.security import OPEN, Sasl, Security, Tls
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit


def security(**config: object) -> Security:
    named = {name.replace("_", "."): value for name, value in config.items()}
    return ClientSettings.from_config(named).security


def token(_config: str) -> tuple[str, float]:
    return "of confluent's shape", 1.0


# --- security ---


def test_plaintext_is_the_default_and_may_be_said() -> None:
    assert security() == security(security_protocol="plaintext") == OPEN


def test_tls_by_librdkafkas_names() -> None:
    found = security(
        security_protocol="SSL",
        ssl_ca_location="ca.pem",
        ssl_certificate_location="us.pem",
        ssl_key_location="us.key",
        ssl_key_password="pw",
    )
    assert found == Security(Tls("ca.pem", None, "us.pem", "us.key", "pw"))


def test_tls_by_javas_names() -> None:
    found = security(
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_location="ca.pem",
        ssl_keystore_type="PEM",
        ssl_keystore_location="us.pem",
        ssl_key_password="pw",
        ssl_endpoint_identification_algorithm="",
    )
    assert found == Security(Tls("ca.pem", None, "us.pem", None, "pw", check_hostname=False))


def test_a_java_key_store_is_refused_with_what_is_read_instead() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.type=JKS is not supported: .*PEM"):
        security(security_protocol="SSL", ssl_truststore_type="JKS", ssl_truststore_location="ca.jks")


def test_sasl_by_name_and_by_jaas_mean_the_same() -> None:
    by_name = security(
        security_protocol="SASL_SSL", sasl_mechanisms="SCRAM-SHA-512", sasl_username="a", sasl_password='p"; w'
    )
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required\n"
        r'  username="a" password="p\"; w" tokenauth=false ;'
    )
    by_jaas = security(security_protocol="sasl_ssl", sasl_mechanism="scram-sha-512", sasl_jaas_config=jaas)
    assert by_name == by_jaas == Security(Tls(), Sasl("SCRAM-SHA-512", "a", 'p"; w'))


def test_a_token_function_of_confluents_shape_is_accepted_and_can_be_pickled() -> None:
    config = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}
    settings = pickle.loads(pickle.dumps(ClientSettings.from_config(config)))
    assert settings.security.exchange().first() == b"n,,\x01auth=Bearer of confluent's shape\x01\x01"


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (
            {"security.protocol": "KERBEROS"},
            "security.protocol must be one of plaintext, ssl, sasl_plaintext, sasl_ssl, not KERBEROS",
        ),
        ({"sasl.username": "a"}, "with security.protocol=PLAINTEXT: set it to SASL_PLAINTEXT or SASL_SSL"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "x"},
            "security.protocol=SASL_PLAINTEXT: set it to SSL or SASL_SSL",
        ),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is missing"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "'GSSAPI': expected one of PLAIN, SCRAM"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "PLAIN needs a user name and a password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs a function that returns a token"),
        ({"security.protocol": "SSL", "ssl.key.location": "k"}, "the private key k needs its certificate"),
        ({"security.protocol": "SSL", "ssl.ca.locatoin": "k"}, "did you mean 'ssl.ca.location'"),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": 'a.ScramLoginModule required username="a" password="p";',
            },
            "names ScramLoginModule, which is not for PLAIN",
        ),
    ],
)
def test_security_that_does_not_hold_together_is_refused(config: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ClientSettings.from_config(config)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must read"),
        ('a.PlainLoginModule required username="a" password="secret"', "must read"),  # no semicolon
        ('a.PlainLoginModule username="a" password="secret";', "must read"),
        ('com.sun.security.auth.module.Krb5LoginModule required keyTab="secret";', "names Krb5LoginModule"),
        ('a.PlainLoginModule required username="a" password="secret;', "1 were found"),
        ('a.PlainLoginModule required username="a"password="secret";', "0 were found"),
    ],
)
def test_a_jaas_text_that_is_none_is_refused_without_showing_the_password(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_jaas(text)
    assert complaint in str(caught.value)
    assert "secret" not in str(caught.value)


def test_jaas_values_may_be_quoted_either_way_or_not_at_all() -> None:
    found = parse_jaas(r"""a.b.PlainLoginModule REQUIRED a=1 b='two "2"' c="tab\tand\\";""")
    assert found.options == {"a": "1", "b": 'two "2"', "c": "tab\tand\\"}


def test_passwords_are_not_shown() -> None:
    shown = repr(Security(Tls(certificate_file="c", key_password="k3y"), Sasl("PLAIN", "alice", "s3cret")))
    assert "alice" in shown
    assert "k3y" not in shown
    assert "s3cret" not in shown


# --- producers and readers ---


def test_a_producer_by_javas_names() -> None:
    settings, options = producer_fields(
        {
            "bootstrap.servers": "a:1",
            "acks": "-1",
            "linger.ms": 5,
            "batch.size": "65536",
            "buffer.memory": "33554432",
            "max.block.ms": "60000",
            "max.request.size": "2097152",
            "compression.type": "LZ4",
            "enable.idempotence": "true",
            "transactional.id": "t",
            "transaction.timeout.ms": 1000,
            "delivery.timeout.ms": "30000",
            "request.timeout.ms": "2500",
        }
    )
    assert (str(settings["servers"][0]), settings["request_timeout"]) == ("a:1", 2.5)
    assert ProducerOptions(**options) == ProducerOptions(
        acks="all",
        linger=0.005,
        batch_size=65536,
        buffer_memory=33554432,
        block_timeout=60.0,
        max_request_size=2097152,
        compression="lz4",
        idempotent=True,
        name="t",
        transaction_timeout=1.0,
        delivery_timeout=30.0,
        request_timeout=2.5,
    )


def test_a_producer_by_librdkafkas_names() -> None:
    _, options = producer_fields(
        {
            "metadata.broker.list": "a:1",
            "request.required.acks": 1,
            "enable.idempotence": False,
            "queue.buffering.max.ms": 0.5,
            "queue.buffering.max.kbytes": 1024,
            "message.timeout.ms": 1000,
            "message.max.bytes": 1000,
            "compression.codec": "zstd",
            "compression.level": "-1",
            "partitioner": "murmur2_random",
        }
    )
    assert ProducerOptions(**options) == ProducerOptions(
        acks="leader",
        idempotent=False,
        linger=0.0005,
        buffer_memory=1 << 20,
        delivery_timeout=1.0,
        max_request_size=1000,
        compression="zstd",
        compression_level=-1,
    )


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"linger": "5"}, "unknown setting 'linger'; did you mean 'linger.ms'?"),
        ({"lingre.ms": "5"}, "did you mean 'linger.ms'?"),
        ({"acks": "0"}, "an idempotent producer needs acks='all'"),
        ({"acks": "2"}, "acks must be one of all, -1, 1, 0, not 2"),
        ({"acks": "1"}, "an idempotent producer needs acks='all'"),
        ({"retries": 3}, "retries is not supported (a record is retried until delivery.timeout.ms)"),
        ({"session.timeout.ms": 1}, "session.timeout.ms is not supported (it is for consumers): remove it"),
        ({"group.id": "g"}, "group.id is not supported (it is for consumers): remove it"),
        ({"compression.type": "brotli"}, "compression='brotli': must be one of none, gzip"),
        ({"enable.idempotence": "yes"}, "enable.idempotence must be true or false, not 'yes'"),
        ({"batch.size": True}, "batch.size must be a positive number of bytes, not True"),
        ({"linger.ms": "nan"}, "linger.ms must be a number of milliseconds, not 'nan'"),
        ({"partitioner": "consistent"}, "partitioner=consistent is not supported: murmur2"),
        ({"linger.ms": 1, "queue.buffering.max.ms": 2}, "linger.ms and queue.buffering.max.ms set the same thing"),
    ],
)
def test_a_producers_setting_that_cannot_be_kept_is_refused(config: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Producer.from_config(config)
    assert complaint in str(caught.value)


def test_arguments_go_before_the_configuration() -> None:
    with Producer.from_config({"linger.ms": 5, "client.id": "c"}, linger=0.1) as producer:
        assert producer._options.linger == 0.1
        assert producer._settings.client_id == "c"


def test_a_reader_with_a_group_goes_on_where_the_group_left_off() -> None:
    settings, options = reader_fields(
        {
            "bootstrap.servers": "a:1",
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "max.partition.fetch.bytes": 1000,
            "fetch.max.wait.ms": 0,
            "queued.max.messages.kbytes": 64,
            "enable.auto.commit": False,
            "check.crcs": "true",
            "group.instance.id": "worker-3",
            "group.protocol": "classic",
            "max.poll.interval.ms": 1000,
            "session.timeout.ms": 6000,
            "metadata.max.age.ms": 2000,
        }
    )
    assert str(settings["servers"][0]) == "a:1"
    assert options == {
        "group": "g",
        "start": "committed",
        "read_committed": False,
        "partition_bytes": 1000,
        "max_wait": 0.0,
        "prefetch_bytes": 65536,
        "member": "worker-3",
        "group_protocol": "cooperative",
        "processing_timeout": 1.0,
        "session_timeout": 6.0,
        "metadata_max_age": 2.0,
    }


def test_a_reader_without_a_group_starts_where_it_is_told() -> None:
    assert reader_fields({"auto.offset.reset": "latest"})[1] == {"start": "latest"}
    assert reader_fields({"auto.offset.reset": "latest", "group.id": "g"})[1] == {"start": "latest", "group": "g"}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"partition.assignment.strategy": "range"}, "group_protocol= chooses 'consumer', 'cooperative' or 'eager'"),
        ({"enable.auto.commit": "true"}, "a reader stores offsets when `commit` is called"),
        ({"heartbeat.interval.ms": 1}, "the session decides how often a reader sends one"),
        ({"linger.ms": 1}, "linger.ms is not supported (it is for producers): remove it"),
        ({"isolation.levle": "read_committed"}, "did you mean 'isolation.level'?"),
    ],
)
def test_a_readers_setting_that_cannot_be_kept_is_refused(config: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Reader.from_config(config, "t")
    assert complaint in str(caught.value)


def test_every_name_sets_something_that_exists() -> None:
    """A field that was renamed is found here, and not by the user who gives the name."""
    options = {field.name for field in dataclasses.fields(ProducerOptions)}
    assert {setting.field for setting in _PRODUCER.values()} - {""} <= options
    arguments = set(inspect.signature(Reader.__init__).parameters)
    assert {setting.field for setting in _READER.values()} - {""} <= arguments
    for table, kind, extra in ((_CLIENT, ClientSettings, set()), (_TLS, Tls, {""}), (_SASL, Sasl, {"jaas"})):
        fields = {field.name for field in dataclasses.fields(kind)}
        assert {setting.field for setting in table.values()} - extra <= fields
