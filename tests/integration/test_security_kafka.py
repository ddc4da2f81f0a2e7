"""TLS and SASL against an Apache Kafka that is configured for them: every client, by the names its users know."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping

import pytest

from fencepost import Admin, Producer, Reader
from fencepost.client.cluster.addresses import parse_address
from fencepost.client.cluster.blocking import BlockingConnection
from fencepost.client.cluster.security import Sasl, Security, Tls
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ErrorCode, FencepostError, SendFailed, ServerError, Unreachable
from fencepost.wire import hot
from fencepost.wire.apis import FETCH_BY_NAME, Key
from tests.support.certificates import KEY_PASSWORD, Certificates, make
from tests.support.kafka import KafkaBroker, running
from tests.support.secured_kafka import PASSWORD, SCRAM_PASSWORD, jaas, secured_broker

pytestmark = [pytest.mark.integration, pytest.mark.kafka]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with running(secured_broker(tmp_path_factory.mktemp("secured"), certificates)) as started:
        yield started


def token(_config: str = "") -> tuple[str, float]:
    """An unsigned one, which Kafka takes for development; in the shape that confluent-kafka's users return."""
    ends = time.time() + 600
    parts = ({"alg": "none"}, {"sub": "alice", "iat": time.time() - 1, "exp": ends})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return f"{'.'.join(encoded)}.", ends


WAYS: dict[str, tuple[str, dict[str, object]]] = {
    "mutual TLS": ("SSL", {}),
    "PLAIN": ("SASL_SSL", {"sasl.mechanisms": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}),
    "PLAIN by JAAS": (
        "SASL_PLAINTEXT",
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("plain.PlainLoginModule", PASSWORD)},
    ),
    "SCRAM-SHA-256": (
        "SASL_PLAINTEXT",
        {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": SCRAM_PASSWORD},
    ),
    "SCRAM-SHA-512 by JAAS": (
        "SASL_SSL",
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas("scram.ScramLoginModule", SCRAM_PASSWORD)},
    ),
    "OAUTHBEARER": ("SASL_SSL", {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": token}),
}


def configured(broker: KafkaBroker, certificates: Certificates, way: str, **changed: object) -> Mapping[str, object]:
    protocol, settings = WAYS[way]
    config = {"bootstrap.servers": broker.listening[protocol], "security.protocol": protocol, **settings}
    if protocol.endswith("SSL"):
        config["ssl.ca.location"] = str(certificates.authority)
    if protocol == "SSL":
        config["ssl.certificate.location"] = str(certificates.client)
        config["ssl.key.location"] = str(certificates.client_key)
        config["ssl.key.password"] = KEY_PASSWORD
    return {**config, **{name.replace("_", "."): value for name, value in changed.items()}}


def send_fetch(channel: BlockingConnection, topic: str, offset: int, *, max_wait_ms: int) -> None:
    wanted = [hot.FetchTopic(topic, None, [hot.FetchPartition(0, offset, 1 << 20)])]
    request = hot.FetchRequest(max_wait_ms, 1, 1 << 20, 1, wanted)
    channel.send(Key.FETCH, lambda version: [hot.encode_fetch_request(version, request)], at_most=FETCH_BY_NAME)


def received(channel: BlockingConnection) -> int:
    return hot.decode_fetch_response(*channel.receive()).topics[0].partitions[0].error_code


@pytest.mark.parametrize("way", WAYS)
def test_every_client_gets_in(broker: KafkaBroker, certificates: Certificates, way: str) -> None:
    """Producer (with batches larger than TLS's records), Reader, Admin, and the link of Spark's tasks."""
    config = configured(broker, certificates, way)
    topic = way.replace(" ", "-")
    values = [f"{number}".encode() * 300 for number in range(3000)]
    with Producer.from_config({**config, "linger.ms": 5}, compression="none") as producer:
        for value in values:
            producer.send(topic, value)
    with Reader.from_config({**config, "isolation.level": "read_committed"}, topic, stop="latest") as reader:
        assert [record.value for record in reader] == values
    settings = ClientSettings.from_config(config)
    with Admin(settings) as admin:
        assert admin.latest(topic) == {0: len(values)}
    with BlockingConnection(settings.servers[0], settings) as channel:
        send_fetch(channel, topic, 0, max_wait_ms=0)
        assert received(channel) == ErrorCode.NONE


def test_a_link_outlives_its_session_with_answers_under_way(broker: KafkaBroker, certificates: Certificates) -> None:
    """The broker ends a connection that is used after its 1.5 s without a renewal."""
    config = configured(broker, certificates, "SCRAM-SHA-512 by JAAS")
    with Producer.from_config(config) as producer:
        producer.send("long-task", b"1").result(60)
    settings = ClientSettings.from_config(config)
    ends = time.monotonic() + 4
    answers = 0
    with BlockingConnection(settings.servers[0], settings) as channel:
        while time.monotonic() < ends:
            for _ in range(2):
                send_fetch(channel, "long-task", 0, max_wait_ms=0)
            while channel._sent:
                assert received(channel) == ErrorCode.NONE
                answers += 1
            # Left under way: the broker holds it back until there is more, or the time is over.
            send_fetch(channel, "long-task", 1, max_wait_ms=20)
    assert answers > 6


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_refused_in_the_servers_words(
    broker: KafkaBroker, certificates: Certificates, way: str
) -> None:
    settings = ClientSettings.from_config(configured(broker, certificates, way, sasl_password="guessed"))
    with (
        Admin(settings) as admin,
        pytest.raises(ServerError, match=r"(?i)invalid (username|credentials)|SASL") as caught,
    ):
        admin.topics()
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


# So long that only a failure that does not wait for it can end a test.
PATIENT = {"delivery_timeout_ms": 3_600_000}


def test_a_record_that_cannot_be_sent_without_a_password_fails_at_once_and_says_so(
    broker: KafkaBroker, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(broker, certificates, "PLAIN", sasl_password="guessed", **PATIENT)
    producer = Producer.from_config(config, on_error=lambda error: None)
    with producer:
        for _ in range(2):  # it is tried again for the next record
            with pytest.raises(SendFailed, match=r"(?i)invalid username or password") as caught:
                producer.send("never", b"1").result(60)
            assert (caught.value.persisted, caught.value.code) == ("no", ErrorCode.SASL_AUTHENTICATION_FAILED)
    assert [record.message.split(" ", 1)[1][:16] for record in caplog.records] == ["rejects this cli"]


def test_a_transaction_does_not_begin_without_the_right_password(
    broker: KafkaBroker, certificates: Certificates
) -> None:
    config = configured(broker, certificates, "PLAIN", sasl_password="guessed", **PATIENT)
    with (
        Producer.from_config(config, name="kept-out") as producer,
        pytest.raises(SendFailed, match=r"(?i)invalid username or password"),
        producer.transaction(),
    ):
        pass


def test_a_reader_does_not_begin_without_the_right_password(broker: KafkaBroker, certificates: Certificates) -> None:
    config = configured(broker, certificates, "PLAIN", sasl_password="guessed")
    with pytest.raises(ServerError, match=r"(?i)invalid username or password"):
        Reader.from_config(config, "never")


def test_a_reader_hears_that_its_token_is_no_longer_taken(broker: KafkaBroker, certificates: Certificates) -> None:
    """The connections of its beginning were let in; the ones that fetch are not."""
    config = configured(broker, certificates, "OAUTHBEARER")
    with Producer.from_config(config) as producer:
        producer.send("token-ends", b"1").result(60)
    tokens = [token()]
    config = {**config, "oauth_cb": lambda _: tokens[0]}
    with Reader.from_config(config, "token-ends", patience=3600) as reader:
        tokens[0] = ("no.token.", time.time() + 600)
        with pytest.raises(FencepostError, match="invalid_token") as caught:
            reader.poll(60)
    assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_refused_token_is_a_failed_authentication(broker: KafkaBroker, certificates: Certificates) -> None:
    config = configured(broker, certificates, "OAUTHBEARER")
    with Admin(ClientSettings.from_config({**config, "oauth_cb": lambda _: "no.token."})) as admin:
        with pytest.raises(FencepostError, match="invalid_token") as caught:
            admin.topics()
        assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_mechanism_that_the_server_does_not_take_is_answered_with_those_it_does(
    broker: KafkaBroker, certificates: Certificates
) -> None:
    sasl = Sasl("PLAIN", "alice", PASSWORD)
    object.__setattr__(sasl, "mechanism", "SCRAM-SHA-1")  # past the check: a name that nobody takes
    security = Security(Tls(str(certificates.authority)), sasl)
    address = parse_address(broker.listening["SASL_SSL"])
    with Admin(ClientSettings((address,), security=security)) as admin, pytest.raises(ServerError) as caught:
        admin.topics()
    assert caught.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert "SCRAM-SHA-512" in caught.value.message


def test_a_server_signed_by_a_stranger_is_not_spoken_to(broker: KafkaBroker, certificates: Certificates) -> None:
    config = configured(broker, certificates, "PLAIN", ssl_ca_location=str(certificates.stranger))
    with Admin(ClientSettings.from_config(config)) as admin, pytest.raises(Unreachable, match="not trusted"):
        admin.topics()
    patient = {"delivery.timeout.ms": 3_600_000}
    with Producer.from_config({**config, **patient}, on_error=lambda error: None) as producer:
        with pytest.raises(SendFailed, match="not trusted") as caught:
            producer.send("never", b"1").result(60)
        assert caught.value.persisted == "no"
    named = Producer.from_config({**config, **patient}, name="distrustful")
    with named, pytest.raises(SendFailed, match="not trusted"), named.transaction():
        pass


def test_the_certificate_must_be_for_the_host_unless_that_is_waived(
    broker: KafkaBroker, certificates: Certificates
) -> None:
    """The certificate is for 127.0.0.1; `localhost` is the same machine by another name."""
    by_name = broker.listening["SASL_SSL"].replace("127.0.0.1", "localhost")
    config = configured(broker, certificates, "PLAIN", bootstrap_servers=by_name)
    with Admin(ClientSettings.from_config(config)) as admin, pytest.raises(Unreachable, match="localhost"):
        admin.topics()
    waived = {**config, "ssl.endpoint.identification.algorithm": "none"}
    with Admin(ClientSettings.from_config(waived)) as admin:
        admin.topics()


def test_without_a_certificate_of_its_own_a_client_stays_outside_of_mutual_tls(
    broker: KafkaBroker, certificates: Certificates
) -> None:
    config = {
        "bootstrap.servers": broker.listening["SSL"],
        "security.protocol": "SSL",
        "ssl.truststore.location": str(certificates.authority),
    }
    with Admin(ClientSettings.from_config(config)) as admin, pytest.raises(Unreachable):
        admin.topics()


def test_a_client_that_should_authenticate_and_does_not_is_told_what_may_be_wrong(broker: KafkaBroker) -> None:
    with Admin(broker.listening["SASL_PLAINTEXT"]) as admin, pytest.raises(Unreachable, match="expects TLS or SASL"):
        admin.topics()
    with Admin(broker.listening["SASL_SSL"]) as admin, pytest.raises(Unreachable):
        admin.topics()


def test_a_session_that_ends_is_renewed_on_the_same_connection(broker: KafkaBroker, certificates: Certificates) -> None:
    """KIP-368: this broker ends SCRAM-SHA-512 connections that have not authenticated anew within 1.5 s."""
    with Producer.from_config(configured(broker, certificates, "SCRAM-SHA-512 by JAAS")) as producer:
        producer.send("renewed", b"0").result(30)
        (connection,) = producer._sender.brokers
        ends = {connection._session_ends}
        sent = 1
        while len(ends) < 3:  # until it was renewed twice
            producer.send("renewed", b"%d" % sent).result(30)
            sent += 1
            assert list(producer._sender.brokers) == [connection]
            ends.add(connection._session_ends)
    with Reader.from_config(configured(broker, certificates, "PLAIN"), "renewed", stop="latest") as reader:
        assert [record.value for record in reader] == [b"%d" % number for number in range(sent)]
