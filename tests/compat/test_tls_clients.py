"""Strangers' clients with right and wrong certificates, against our server and Apache Kafka: the same tests."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest
from aiokafka.helpers import create_ssl_context
from confluent_kafka.admin import AdminClient

import fencepost
from fencepost.core.security.certificate_name import subject_of
from tests.compat.java_tools import JAVA, TOPICS, running_tools
from tests.support.certificates import Certificates, Pair, make
from tests.support.kafka import java, running
from tests.support.secured_kafka import secured_broker

with warnings.catch_warnings():
    # It reads its own schemas in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

pytestmark = [pytest.mark.compat, pytest.mark.kafka, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SECONDS = 30
VALUES = [b"%d" % number * 3000 for number in range(200)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["ours", pytest.param("kafka", marks=pytest.mark.long)])
def address(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """HOST:PORT of a listener that requires client certificates."""
    if request.param == "ours":
        listener = certificates.mutual_listener()
        with fencepost.Server(listeners=(listener,)) as server:
            yield server.address
        return
    with running(secured_broker(tmp_path_factory.mktemp("secured"), certificates)) as broker:
        yield broker.listening["SSL"]


@pytest.fixture(scope="module")
def right(certificates: Certificates) -> Pair:
    return certificates.issue("alice")


WRONG: dict[str, Callable[[Certificates], Pair]] = {
    "expired": lambda made: made.issue("late", days=-1),
    "untrusted": lambda made: made.issue("strange", authority="stranger"),
}


@pytest.fixture(params=WRONG)
def wrong(request: pytest.FixtureRequest, certificates: Certificates) -> Pair:
    return WRONG[request.param](certificates)


# --- confluent-kafka ---


def librdkafka(address: str, certificates: Certificates, pair: Pair) -> dict[str, str]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates.authority),
        "ssl.certificate.location": str(pair.certificate),
        "ssl.key.location": str(pair.key),
    }


def test_confluent_kafka(address: str, certificates: Certificates, right: Pair, name: str) -> None:
    config = librdkafka(address, certificates, right)
    producer = confluent_kafka.Producer({**config, "linger.ms": 5})
    for value in VALUES:
        producer.produce(name, value)
    assert producer.flush(SECONDS) == 0
    consumer = confluent_kafka.Consumer({**config, "group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    seen: list[bytes] = []
    while len(seen) < len(VALUES):
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None
        seen.append(message.value())
    consumer.close()
    assert seen == VALUES


def test_confluent_kafka_with_a_wrong_certificate(address: str, certificates: Certificates, wrong: Pair) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    admin = AdminClient({**librdkafka(address, certificates, wrong), "error_cb": errors.append, "log_level": 0})
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=3)
    ends = time.monotonic() + SECONDS
    while not any("alert" in error.str() for error in errors):
        assert time.monotonic() < ends, errors
        admin.poll(1)  # hands over the errors; on a busy machine there may be none yet, or others first


# --- kafka-python ---


def kafka_python(address: str, certificates: Certificates, pair: Pair) -> dict[str, object]:
    return {
        "bootstrap_servers": address,
        "security_protocol": "SSL",
        "ssl_cafile": str(certificates.authority),
        "ssl_certfile": str(pair.certificate),
        "ssl_keyfile": str(pair.key),
    }


def test_kafka_python(address: str, certificates: Certificates, right: Pair, name: str) -> None:
    config = kafka_python(address, certificates, right)
    producer = kafka.KafkaProducer(**config)
    sent = [producer.send(name, value) for value in VALUES]
    producer.flush(SECONDS)
    assert all(each.succeeded() for each in sent)
    producer.close()
    consumer = kafka.KafkaConsumer(
        name, **config, auto_offset_reset="earliest", group_id=None, consumer_timeout_ms=SECONDS * 1000
    )
    seen = [next(consumer).value for _ in VALUES]
    consumer.close()
    assert seen == VALUES


def test_kafka_python_with_a_wrong_certificate(address: str, certificates: Certificates, wrong: Pair) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(**kafka_python(address, certificates, wrong), bootstrap_timeout_ms=3000).list_topics()


# --- aiokafka ---


def asynchronous(certificates: Certificates, pair: Pair) -> ssl.SSLContext:
    made: ssl.SSLContext = create_ssl_context(
        cafile=str(certificates.authority), certfile=str(pair.certificate), keyfile=str(pair.key)
    )
    return made


def test_aiokafka(address: str, certificates: Certificates, right: Pair, name: str) -> None:
    async def round_trip() -> list[bytes]:
        config = {
            "bootstrap_servers": address,
            "security_protocol": "SSL",
            "ssl_context": asynchronous(certificates, right),
        }
        async with aiokafka.AIOKafkaProducer(**config) as producer:
            for value in VALUES:
                await producer.send_and_wait(name, value)
        async with aiokafka.AIOKafkaConsumer(name, **config, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(round_trip(), 60)) == VALUES


def test_aiokafka_with_a_wrong_certificate(address: str, certificates: Certificates, wrong: Pair) -> None:
    async def start() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol="SSL",
            ssl_context=asynchronous(certificates, wrong),
            request_timeout_ms=3000,
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(start())


# --- Java ---


def properties(folder: Path, certificates: Certificates, pair: Pair) -> Path:
    both = folder / "keystore.pem"
    both.write_text(pair.key.read_text() + pair.certificate.read_text())
    file = folder / "client.properties"
    file.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={certificates.authority}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={both}\nrequest.timeout.ms=10000\ndefault.api.timeout.ms=20000\n"
    )
    return file


@pytest.mark.usefixtures("kafka_jars")
def test_javas_tools(address: str, certificates: Certificates, right: Pair, name: str, tmp_path: Path) -> None:
    """With the right certificate, and then with wrong ones; one JVM for all."""
    with running_tools(tmp_path / "jvm.log") as tools:
        config = properties(tmp_path, certificates, right)
        arguments = ("--bootstrap-server", address, "--command-config")
        tools.run(TOPICS, *arguments, config, "--create", "--topic", name)
        assert name in tools.run(TOPICS, *arguments, config, "--list").lines
        for number, make_pair in enumerate(WRONG.values()):
            folder = tmp_path / str(number)
            folder.mkdir()
            config = properties(folder, certificates, make_pair(certificates))
            refused = tools.run(TOPICS, *arguments, config, "--list", expect=1)
            # What Java 17 says of an alert that comes after its own part of the handshake, as it does in TLS 1.3.
            assert "Failed to process post-handshake messages" in refused.out


@pytest.mark.usefixtures("kafka_jars")
def test_subjects_are_written_as_java_writes_them(certificates: Certificates) -> None:
    subjects = [
        "/CN=alice",
        "/C=DE/ST=Bavaria/L=Munich/O=Example, Inc./OU=A\\+B/CN=Bob",
        "/DC=org/DC=example/UID=u1/street=Way 1/CN=müller ß 漢",
        "/CN= spaces /O=#hash",
        "/CN=\\\\ back/O=  ",
        "/CN=a/emailAddress=a@example.org",
        '/CN=semi;<x>="q"/serialNumber=5/title=Dr.',
    ]
    files = [certificates.issue(f"j{number}", subject=each).certificate for number, each in enumerate(subjects)]
    done = subprocess.run(java(JAVA / "Subject.java", *files), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    ours = [subject_of(ssl.PEM_cert_to_DER_cert(file.read_text())) for file in files]
    assert ours == done.stdout.decode().splitlines()
