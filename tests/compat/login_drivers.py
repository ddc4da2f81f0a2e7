"""One small driver per client: log in, write a record, read it back, and say in the client's words what happened."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
from aiokafka.helpers import create_ssl_context
from confluent_kafka import KafkaError

from tests.compat.java_tools import JAVA
from tests.support.kafka import java
from tests.support.login_cases import Login, Outcome
from tests.support.secured_kafka import MODULES
from tests.support.secured_servers import GROUP, SECONDS, TOPIC

with warnings.catch_warnings():
    # It reads its own schemas in a way that Python 3.11 warns of.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors
    from kafka.net.sasl.oauth import AbstractTokenProvider

Driver: TypeAlias = Callable[[Login, str], str]
"""Takes a login and a value to write; returns LET_IN, or the name of the client's error."""

LET_IN: Final = Outcome.LET_IN.value
TLS_ALERT: Final = "TLS alert"

# kafka-python, and aiokafka with a refused token, try again until their time is over.
REFUSED_AFTER_MS: Final = 1000


# --- confluent-kafka ---


def librdkafka(login: Login) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": login.address,
        "security.protocol": login.way.protocol,
        "log_level": 0,
    }
    if login.way.protocol.endswith("SSL"):
        config["ssl.ca.location"] = str(login.authority)
    if login.pair is not None:
        config |= {"ssl.certificate.location": str(login.pair.certificate), "ssl.key.location": str(login.pair.key)}
    elif login.token:
        config |= {"sasl.mechanism": login.way.mechanism, "oauth_cb": lambda _: (login.token, time.time() + 600)}
    else:
        config |= {
            "sasl.mechanism": login.way.mechanism,
            "sasl.username": login.user,
            "sasl.password": login.password,
        }
    return config


def by_confluent_kafka(login: Login, value: str) -> str:
    errors: list[KafkaError] = []
    delivered: list[tuple[KafkaError | None, Any]] = []
    config = {**librdkafka(login), "error_cb": errors.append}
    producer = confluent_kafka.Producer(config)
    producer.produce(TOPIC, value.encode(), on_delivery=lambda error, message: delivered.append((error, message)))
    ends = time.monotonic() + SECONDS
    while not delivered and not (refusals := [word for error in errors if (word := _refusal(error))]):
        assert time.monotonic() < ends, errors
        producer.poll(0.1)
    if not delivered:
        producer.purge()
        producer.flush(SECONDS)
        return refusals[0]
    [(error, message)] = delivered
    if error is not None:
        return str(error.name())
    consumer = confluent_kafka.Consumer({**librdkafka(login), "group.id": GROUP, "enable.auto.commit": False})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, message.offset())])
    found = consumer.poll(SECONDS)
    consumer.close()
    return _seen(found and found.error(), found and found.value(), value)


def _refusal(error: KafkaError) -> str:
    """Return the name of an error that says why the client stays outside, or an empty string."""
    if error.code() == KafkaError._AUTHENTICATION:
        return str(error.name())
    # In TLS 1.3 the client's handshake is over before the server has seen its certificate.
    return TLS_ALERT if error.code() in (KafkaError._TRANSPORT, KafkaError._SSL) and "alert" in error.str() else ""


def _seen(error: object, found: bytes | None, value: str) -> str:
    return LET_IN if not error and found == value.encode() else f"read {found!r}, {error}"


# --- kafka-python ---


class Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def _pythons(login: Login) -> dict[str, Any]:
    """The settings that kafka-python and aiokafka share."""
    config: dict[str, Any] = {"bootstrap_servers": login.address, "security_protocol": login.way.protocol}
    if login.way.mechanism:
        config["sasl_mechanism"] = login.way.mechanism
    if login.user:
        config |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
    return config


def by_kafka_python(login: Login, value: str) -> str:
    config = {**_pythons(login), "request_timeout_ms": 10_000}
    if login.token:
        config["sasl_oauth_token_provider"] = Token(login.token)
    if login.way.protocol.endswith("SSL"):
        config["ssl_cafile"] = str(login.authority)
    if login.pair is not None:
        config |= {"ssl_certfile": str(login.pair.certificate), "ssl_keyfile": str(login.pair.key)}
    patience = SECONDS * 1000 if login.gets_in else REFUSED_AFTER_MS
    clients: list[Any] = []

    def make_client(**settings: Any) -> Any:
        clients.append(kafka.KafkaProducer.DEFAULT_CONFIG["kafka_client"](**settings))
        return clients[-1]

    try:
        producer = kafka.KafkaProducer(
            **config, bootstrap_timeout_ms=patience, max_block_ms=patience, kafka_client=make_client
        )
        try:
            written = producer.send(TOPIC, value.encode(), partition=0).get(SECONDS)
        finally:
            producer.close(timeout=1)
    except kafka.errors.KafkaError as error:
        return type(error).__name__
    finally:
        clients[0].close()  # a producer that could not begin leaves it open
    consumer = kafka.KafkaConsumer(group_id=None, consumer_timeout_ms=SECONDS * 1000, **config)
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, written.offset)
    found = next(consumer).value
    consumer.close()
    return _seen(None, found, value)


# --- aiokafka ---


class AsyncToken(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def by_aiokafka(login: Login, value: str) -> str:
    config = {**_pythons(login), "request_timeout_ms": SECONDS * 1000 if login.gets_in else REFUSED_AFTER_MS}
    if login.token:
        config["sasl_oauth_token_provider"] = AsyncToken(login.token)
    if login.way.protocol.endswith("SSL"):
        pair = login.pair
        config["ssl_context"] = create_ssl_context(
            cafile=str(login.authority),
            certfile=pair and str(pair.certificate),
            keyfile=pair and str(pair.key),
        )

    async def there_and_back() -> str:
        producer = aiokafka.AIOKafkaProducer(**config)
        try:
            await producer.start()
            written = await producer.send_and_wait(TOPIC, value.encode(), partition=0)
        finally:
            await producer.stop()
        async with aiokafka.AIOKafkaConsumer(**config) as consumer:
            partition = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, written.offset)
            return _seen(None, (await consumer.getone()).value, value)

    try:
        return asyncio.run(asyncio.wait_for(there_and_back(), SECONDS))
    except aiokafka.errors.KafkaError as error:
        return type(error).__name__
    finally:
        if not login.gets_in:
            _drop_leftovers()


def _drop_leftovers() -> None:
    """aiokafka leaves the connection of a refused login open. Python would warn of that in some later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


# --- Java ---


def javas(login: Login, folder: Path) -> Mapping[str, str]:
    """The properties of Java's clients and tools; `folder` takes the files that they name."""
    config = {"security.protocol": login.way.protocol, "max.block.ms": "20000", "request.timeout.ms": "10000"}
    if login.way.protocol.endswith("SSL"):
        config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(login.authority)}
    if login.way.mechanism:
        config["sasl.mechanism"] = login.way.mechanism
    if login.pair is not None:
        both = folder / f"{login.pair.key.stem}-with-key.pem"
        both.write_text(login.pair.key.read_text() + login.pair.certificate.read_text())
        return {**config, "ssl.keystore.type": "PEM", "ssl.keystore.location": str(both)}
    if login.token:
        file = folder / f"{login.who.replace(' ', '-')}.jwt"
        file.write_text(login.token)
        return {
            **config,
            "sasl.login.callback.handler.class": f"{MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
            "sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        }
    module = "plain.PlainLoginModule" if login.way.mechanism == "PLAIN" else "scram.ScramLoginModule"
    return {
        **config,
        "sasl.jaas.config": f'{MODULES}.{module} required username="{login.user}" password="{login.password}";',
    }


@contextmanager
def running_java(folder: Path) -> Iterator[Driver]:
    """Java's clients, all in one JVM: `java/Logins.java`."""
    with (folder / "jvm.log").open("wb") as complaints:
        process = subprocess.Popen(
            java(JAVA / "Logins.java"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, text=True
        )

    def by_java(login: Login, value: str) -> str:
        assert process.stdin is not None and process.stdout is not None
        config = {"bootstrap.servers": login.address, **javas(login, folder)}
        process.stdin.write(json.dumps({"topic": TOPIC, "value": value, "config": config}) + "\n")
        process.stdin.flush()
        stuck = threading.Timer(2 * SECONDS, process.kill)
        stuck.start()
        answer = process.stdout.readline()
        stuck.cancel()
        assert answer, (folder / "jvm.log").read_text()[-3000:]
        return answer.strip()

    with process:
        try:
            yield by_java
        finally:
            process.kill()
