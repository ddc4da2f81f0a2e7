"""Other people's clients against servers with logins and ACLs: who gets in, who does not, and what they are told.

Each test runs against fencepost's server and against Apache Kafka with its StandardAuthorizer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialsDescription,
    UserScramCredentialUpsertion,
)

from tests.compat.java_tools import CONFIGS, TOPICS, Tools, running_tools
from tests.compat.login_drivers import (
    LET_IN,
    TLS_ALERT,
    Driver,
    by_aiokafka,
    by_confluent_kafka,
    by_kafka_python,
    javas,
    running_java,
)
from tests.support.crash import await_that
from tests.support.kafka import KafkaUnavailable
from tests.support.login_cases import WAYS, Login, Outcome, Way, logins
from tests.support.make_runs import without_tool
from tests.support.secured_servers import (
    GROUP,
    SECONDS,
    TOPIC,
    USERS,
    SecuredServer,
    allow,
    run_fencepost,
    run_kafka,
)

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORDS: Final[Mapping[str, Mapping[Outcome, str]]] = {
    "confluent-kafka": {
        Outcome.LET_IN: LET_IN,
        Outcome.NO_LOGIN: "_AUTHENTICATION",
        Outcome.NO_PERMISSION: "TOPIC_AUTHORIZATION_FAILED",
        Outcome.NO_TLS: TLS_ALERT,
    },
    "kafka-python": {
        Outcome.LET_IN: LET_IN,
        Outcome.NO_LOGIN: "KafkaTimeoutError",
        Outcome.NO_PERMISSION: "TopicAuthorizationFailedError",
        Outcome.NO_TLS: "KafkaTimeoutError",
    },
    "aiokafka": {
        Outcome.LET_IN: LET_IN,
        Outcome.NO_LOGIN: "KafkaConnectionError",
        Outcome.NO_PERMISSION: "TopicAuthorizationFailedError",
        Outcome.NO_TLS: "KafkaConnectionError",
    },
    "java": {
        Outcome.LET_IN: LET_IN,
        Outcome.NO_LOGIN: "SASL_AUTHENTICATION_FAILED",
        Outcome.NO_PERMISSION: "TOPIC_AUTHORIZATION_FAILED",
        Outcome.NO_TLS: TLS_ALERT,
    },
}
"""What each client says, the same of both servers."""

ACLS: Final = "org.apache.kafka.tools.AclCommand"
WRITE: Final = "org.apache.kafka.tools.ConsoleProducer"
READ: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOOLS_WAYS: Final = [way for way in WAYS if way.mechanism != "SCRAM-SHA-256"]
REFUSED_WORDS: Final = re.compile("(?i)authentication failed|invalid_token")
TOKEN_FILES: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
SERVERS: Final = ("fencepost", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.long]))
"""Apache Kafka shows that a client says what is expected here. Our code does not change that: in long runs only."""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    run = run_fencepost if request.param == "fencepost" else run_kafka
    try:
        with run(tmp_path_factory.mktemp("secured")) as started:
            yield started
    except KafkaUnavailable as unavailable:
        without_tool(str(unavailable))


@pytest.fixture(scope="module")
def by_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with running_java(tmp_path_factory.mktemp("java")) as driver:
        yield driver


PYTHONS: Final[Mapping[str, Driver]] = {
    "confluent-kafka": by_confluent_kafka,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
}


def heard(driver: Driver, server: SecuredServer, way: Way) -> list[tuple[str, str]]:
    return [(login.who, driver(login, f"{login.who} by {way}")) for login in logins(server, way)]


def expected(client: str, server: SecuredServer, way: Way) -> list[tuple[str, str]]:
    words = dict(WORDS[client])
    if client == "aiokafka" and way.mechanism == "OAUTHBEARER" and server.name == "kafka":
        # It takes the refusal for a success and sends its next request, which is not answered but by Kafka's error.
        words[Outcome.NO_LOGIN] = "UnknownTopicOrPartitionError"
    return [(login.who, words[login.outcome]) for login in logins(server, way)]


@pytest.mark.every_run(  # each mechanism and each client once
    "fencepost-SCRAM-SHA-512 over SASL_SSL-confluent-kafka",
    "fencepost-SCRAM-SHA-256 over SASL_PLAINTEXT-aiokafka",
    "fencepost-PLAIN over SASL_PLAINTEXT-kafka-python",
    "fencepost-OAUTHBEARER over SASL_PLAINTEXT-confluent-kafka",
    "fencepost-mutual TLS over SSL-aiokafka",
)
@pytest.mark.parametrize("client", PYTHONS)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_who_gets_in(server: SecuredServer, way: Way, client: str) -> None:
    assert heard(PYTHONS[client], server, way) == expected(client, server, way)


@pytest.mark.every_run("fencepost-SCRAM-SHA-512 over SASL_SSL")
@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_jars")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_who_gets_in_with_java(server: SecuredServer, way: Way, by_java: Driver) -> None:
    assert heard(by_java, server, way) == expected("java", server, way)


def test_confluent_kafka_hears_why(server: SecuredServer) -> None:
    """Both servers give the same reason for a wrong password, and none that says whether the user exists."""
    for user in ("alice", "nobody"):
        errors: list[KafkaError] = []
        wrong = {**server.as_user("alice"), "sasl.username": user, "sasl.password": "x", "sasl.mechanism": "PLAIN"}
        producer = Producer({**wrong, "error_cb": errors.append})
        while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
            producer.poll(0.1)
        assert "invalid username or password" in str(errors).lower()


def test_confluent_kafka_hears_what_it_may_not_do(server: SecuredServer) -> None:
    mallory = server.as_user("mallory")
    delivered: list[KafkaError] = []
    producer = Producer(mallory)
    producer.produce(TOPIC, b"c", on_delivery=lambda error, message: delivered.append(error))
    producer.flush(SECONDS)
    assert [error.code() for error in delivered] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    consumer = Consumer({**mallory, "group.id": GROUP})
    consumer.subscribe([TOPIC])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.error().code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    consumer.close()
    admin = AdminClient(mallory)
    assert TOPIC not in admin.list_topics(timeout=SECONDS).topics
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic("new", 1)])["new"].result(SECONDS)
    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_group_of_confluent_kafka_reads(server: SecuredServer) -> None:
    alice = server.as_user("alice")
    producer = Producer({**alice, "enable.idempotence": True})
    producer.produce(TOPIC, b"for the group")
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({**alice, "group.id": GROUP, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    message = consumer.poll(SECONDS)
    assert message is not None
    assert message.error() is None
    consumer.close()


def await_user(admin: AdminClient, user: str) -> UserScramCredentialsDescription:
    """Describe a user that was just added: a broker of Kafka knows it only a moment after it has answered."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            found: UserScramCredentialsDescription = admin.describe_user_scram_credentials([user])[user].result(SECONDS)
            return found
        except KafkaException as error:
            if error.args[0].code() != KafkaError.RESOURCE_NOT_FOUND or time.monotonic() > deadline:
                raise


def test_confluent_kafka_manages_users_and_acls(server: SecuredServer) -> None:
    admin = AdminClient(server.as_user("admin"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", info, b"carol-secret")])["carol"].result(
        SECONDS
    )
    described = await_user(admin, "carol")
    assert [(found.mechanism, found.iterations) for found in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8192)
    ]
    allow(admin, "carol", ResourceType.TOPIC, TOPIC, AclOperation.DESCRIBE)
    carol = {"sasl.username": "carol", "sasl.password": "carol-secret", "sasl.mechanism": "SCRAM-SHA-256"}
    as_carol = AdminClient({**server.as_user("admin"), **carol})
    await_that(lambda: TOPIC in as_carol.list_topics(timeout=SECONDS).topics, lambda: "carol does not see the topic")
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:carol",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.describe_acls(everything).result(SECONDS)) == 1
    assert len(admin.delete_acls([everything])[everything].result(SECONDS)) == 1
    await_that(lambda: TOPIC not in as_carol.list_topics(timeout=SECONDS).topics, lambda: "carol still sees the topic")


# --- Kafka's own tools ---


class As:
    """A user of the tools: the file with the credentials, and where the tools connect."""

    def __init__(self, folder: Path, login: Login) -> None:
        self.file = folder / f"{login.who}-{login.way}.properties".replace(" ", "-")
        settings = {**javas(login, folder), "default.api.timeout.ms": "15000"}
        self.file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self.tokens = settings.get("sasl.oauthbearer.token.endpoint.url")
        self.at: tuple[str | Path, ...] = ("--bootstrap-server", login.address, "--command-config", self.file)


def with_password(folder: Path, server: SecuredServer, user: str, password: str, way: Way) -> As:
    login = Login(user, Outcome.LET_IN, way, server.addresses[way.protocol], server.certificates.authority)
    return As(folder, replace(login, user=user, password=password))


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_own_tools_log_in(server: SecuredServer, tmp_path: Path) -> None:
    """kafka-topics in every way: alice sees the topic, others do not, and wrong credentials end the tool with 1."""
    people = {way: [(login, As(tmp_path, login)) for login in logins(server, way)] for way in TOOLS_WAYS}
    files = ",".join(user.tokens for each in people.values() for _, user in each if user.tokens)
    with running_tools(tmp_path / "jvm.log", f"-D{TOKEN_FILES}={files}") as tools:
        for way, each in people.items():
            for login, user in each:
                said = tools.run(TOPICS, *user.at, "--list", expect=0 if login.gets_in else 1)
                seen = [TOPIC] if login.outcome is Outcome.LET_IN else []
                assert not login.gets_in or said.out.split() == seen, (str(way), login.who)
                if login.outcome is Outcome.NO_LOGIN:
                    assert REFUSED_WORDS.search(said.out), (str(way), login.who)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_jars")
def test_kafkas_own_tools_manage_users_and_acls(server: SecuredServer, tmp_path: Path) -> None:
    """kafka-topics, kafka-configs, kafka-acls and the console's producer and consumer."""
    plain, encrypted = Way("SASL_PLAINTEXT", "SCRAM-SHA-256"), Way("SASL_SSL", "SCRAM-SHA-512")
    admin = with_password(tmp_path, server, "admin", USERS["admin"], encrypted)
    dora = with_password(tmp_path, server, "dora", "dora-secret", plain)

    def sees(tools: Tools) -> bool:
        return tools.run(TOPICS, *dora.at, "--list").out.split() == [TOPIC]

    with running_tools(tmp_path / "jvm.log") as tools:
        change = ("--alter", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=dora-secret]")
        tools.run(CONFIGS, *admin.at, *change, "--entity-type", "users", "--entity-name", "dora")
        described = tools.run(CONFIGS, *admin.at, "--describe", "--entity-type", "users", "--entity-name", "dora")
        assert "SCRAM-SHA-256=iterations=4096" in described.out
        assert not sees(tools)
        given = ("--add", "--allow-principal", "User:dora", "--operation", "Read", "--operation", "Write")
        tools.run(ACLS, *admin.at, *given, "--topic", "ord", "--resource-pattern-type", "prefixed")
        tools.run(ACLS, *admin.at, *given[:5], "--group", GROUP)
        await_that(lambda: sees(tools), lambda: "dora does not see the topic")
        console = ("--bootstrap-server", dora.at[1], "--topic", TOPIC)
        tools.run(WRITE, *console, "--command-config", dora.file, stdin="from the console\n")
        read = ("--from-beginning", "--timeout-ms", "5000", "--group", GROUP, "--command-config", dora.file)
        assert "from the console" in tools.run(READ, *console, *read).lines
        assert "User:dora" in tools.run(ACLS, *admin.at, "--list", "--principal", "User:dora").out
        refused = tools.run(ACLS, *dora.at, "--list", expect=1)
        assert "ClusterAuthorizationException" in refused.out + refused.error
        tools.run(ACLS, *admin.at, "--remove", "--force", "--topic", "ord", "--resource-pattern-type", "prefixed")
        await_that(lambda: not sees(tools), lambda: "dora still sees the topic")
