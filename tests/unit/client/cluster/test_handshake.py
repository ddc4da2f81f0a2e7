"""How a connection begins, stepped: versions, authentication, renewal; and what a server may do wrong meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.connection import BrokerConnection, ConnectionState
from fencepost.client.cluster.handshake import INTRODUCTION, Question, Welcome, introduce, renew
from fencepost.client.cluster.sasl import Plain
from fencepost.client.cluster.security import Sasl, Security, Tls
from fencepost.client.cluster.sockets import Handler
from fencepost.core.steps import carry_out
from fencepost.errors import ConfigError, ErrorCode, FencepostError, ServerError
from fencepost.kernel import Buffer
from fencepost.wire import messages
from fencepost.wire.apis import Key
from fencepost.wire.frame import read_request_head, response_head
from tests.support.clock import HandWoundClock

pytestmark = pytest.mark.unit

ADDRESS = Address("kafka.example", 9093)
VERSIONS: dict[int, tuple[int, int]] = {
    Key.API_VERSIONS: (0, 4),
    Key.SASL_HANDSHAKE: (0, 1),
    Key.SASL_AUTHENTICATE: (0, 2),
}


class Server:
    """Answers what it is asked by a table of fields, through the wire's own encoding; remembers the questions."""

    def __init__(self, **changed: Mapping[str, Any]) -> None:
        self.asked: list[Question] = []
        offered = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in VERSIONS.items()]
        self.answers: dict[int, Mapping[str, Any]] = {
            Key.API_VERSIONS: {"error_code": 0, "api_keys": offered, "throttle_time": 0},
            Key.SASL_HANDSHAKE: {"error_code": 0, "mechanisms": ["PLAIN", "SCRAM-SHA-256"]},
            Key.SASL_AUTHENTICATE: {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": 0},
        }
        names = {"versions": Key.API_VERSIONS, "handshake": Key.SASL_HANDSHAKE, "authenticate": Key.SASL_AUTHENTICATE}
        for name, fields in changed.items():
            self.answers[names[name]] = {**self.answers[names[name]], **fields}

    def encoded(self, question: Question) -> bytes:
        self.asked.append(question)
        return messages.encode_response(question.key, question.version, self.answers[question.key])

    def __call__(self, question: Question) -> Any:
        return messages.decode_response(question.key, question.version, memoryview(self.encoded(question)))


def test_without_credentials_only_versions_are_asked_for() -> None:
    server = Server()
    assert carry_out(introduce(ADDRESS, None), server) == Welcome(VERSIONS, None)
    assert [(question.key, question.version) for question in server.asked] == [(Key.API_VERSIONS, 3)]
    assert server.asked[0].fields["client_software_name"] == "fencepost"


def test_with_credentials_the_mechanism_is_named_and_then_played() -> None:
    server = Server()
    carry_out(introduce(ADDRESS, Plain("a", "b")), server)
    assert [question.key for question in server.asked] == [Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE]
    assert server.asked[1] == Question(Key.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    assert server.asked[2] == Question(Key.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0a\0b"})


def test_a_session_with_an_end_is_to_be_renewed_before_it() -> None:
    welcome = carry_out(introduce(ADDRESS, Plain("a", "b")), Server(authenticate={"session_lifetime": 10_000}))
    assert welcome.session is not None
    assert 5.0 < welcome.session < 10.0
    again = Server()
    assert carry_out(renew(ADDRESS, VERSIONS, Plain("a", "b")), again) == Welcome(VERSIONS, None)
    assert [question.key for question in again.asked] == [Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE]


@pytest.mark.parametrize(
    ("server", "code", "words"),
    [
        (Server(versions={"error_code": 31}), ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "for its API versions"),
        (
            Server(versions={"api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}]}),
            ErrorCode.ILLEGAL_SASL_STATE,
            "kafka.example:9093 does not support SASL",
        ),
        (
            Server(handshake={"error_code": 33, "mechanisms": ["GSSAPI"]}),
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "does not support PLAIN; it supports GSSAPI",
        ),
        (
            Server(handshake={"error_code": 34}),
            ErrorCode.ILLEGAL_SASL_STATE,
            "does not authenticate clients on this listener",
        ),
        (
            Server(authenticate={"error_code": 58, "error_message": "Invalid username"}),
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Invalid username",
        ),
        (
            Server(authenticate={"error_code": 58}),
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "rejected the credentials",
        ),
    ],
)
def test_a_refusal_is_raised_with_its_code_and_reason(server: Server, code: ErrorCode, words: str) -> None:
    with pytest.raises(ServerError, match=words) as caught:
        carry_out(introduce(ADDRESS, Plain("a", "b")), server)
    assert caught.value.code is code


# --- the same from the loop of the send thread ---


class OneLink:
    """A network of one link; what is written to it is answered by a Server when the test says so."""

    written = queued = max_answer = 0

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.is_open = True
        self.is_idle = False

    def dial(self, address: Address, handler: Handler) -> OneLink:
        return self

    def write(self, parts: Sequence[Buffer]) -> None:
        self.requests.append(b"".join(bytes(part) for part in parts)[4:])

    def close(self) -> None:
        self.is_open = False

    def answer(self, server: Server, connection: BrokerConnection) -> None:
        frame = self.requests.pop(0)
        head = read_request_head(frame)
        body = server.encoded(Question(head.key, head.version, {}))
        connection.frame(memoryview(response_head(head.key, head.version, head.correlation_id) + body))

    def before_work(self) -> None: ...
    def poll(self, timeout: float | None) -> bool:
        return False

    def write_now(self, data: bytes) -> bool:
        return False

    def wake(self) -> None: ...
    def forget_sockets(self) -> None: ...


class Dialled:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.clock = HandWoundClock()
        self.link = OneLink()
        self.ready = 0
        self.errors: list[FencepostError] = []
        self.connection = BrokerConnection(
            ADDRESS,
            self.link,
            self.clock.monotonic(),
            security=Security(sasl=Sasl("PLAIN", "a", "b")),
            on_ready=self._is_ready,
            on_lost=lambda _, error: self.errors.append(error),
            clock=self.clock.monotonic,
        )
        self.connection.connected()

    def _is_ready(self, _: BrokerConnection) -> None:
        self.ready += 1

    def answer(self, times: int = 1) -> None:
        for _ in range(times):
            self.link.answer(self.server, self.connection)


def test_a_connection_is_ready_when_it_is_authenticated_and_not_before() -> None:
    dialled = Dialled(Server())
    states = [dialled.connection.state]
    for _ in range(3):
        dialled.answer()
        states.append(dialled.connection.state)
    assert states == [
        ConnectionState.NEGOTIATING,
        ConnectionState.AUTHENTICATING,
        ConnectionState.AUTHENTICATING,
        ConnectionState.READY,
    ]
    assert dialled.ready == 1
    assert dialled.connection.next_deadline == float("inf")


def test_a_connection_that_is_refused_ends_with_the_servers_reason() -> None:
    dialled = Dialled(Server(authenticate={"error_code": 58, "error_message": "Invalid username"}))
    dialled.answer(3)
    assert dialled.connection.state is ConnectionState.CLOSED
    assert not dialled.link.is_open
    assert [error.code for error in dialled.errors] == [ErrorCode.SASL_AUTHENTICATION_FAILED]


def test_a_session_is_renewed_behind_in_flight_requests_and_nothing_is_added() -> None:
    dialled = Dialled(Server(authenticate={"session_lifetime": 10_000}))
    dialled.answer(3)
    answers: list[Any] = []

    def nobody_expects(error: FencepostError, left: bool) -> None:
        raise AssertionError(error)

    dialled.connection.ask(Key.API_VERSIONS, INTRODUCTION, answers.append, nobody_expects)
    dialled.clock.advance(dialled.connection.next_deadline - dialled.clock.monotonic())
    dialled.connection.check_deadlines(dialled.clock.monotonic())
    ready = [dialled.connection.is_ready]
    for _ in range(3):  # to what was asked before, to the handshake, to the credentials
        dialled.answer()
        ready.append(dialled.connection.is_ready)
    assert ready == [False, False, False, True]
    assert len(answers) == 1
    assert dialled.ready == 1  # the same connection, not a new one
    assert dialled.connection.next_deadline > dialled.clock.monotonic()


def test_a_renewal_that_is_not_answered_in_time_ends_the_connection() -> None:
    dialled = Dialled(Server(authenticate={"session_lifetime": 10_000}))
    dialled.answer(3)
    dialled.clock.advance(9)
    dialled.connection.check_deadlines(dialled.clock.monotonic())
    dialled.clock.advance(11)
    dialled.connection.check_deadlines(dialled.clock.monotonic())
    assert dialled.connection.state is ConnectionState.CLOSED


# --- files of certificates ---


def test_files_that_are_no_certificates_are_named(tmp_path: Any) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigError, match=r"no CA certificates in .*empty\.pem, expected PEM"):
        Tls(ca_file=str(empty)).context()
    with pytest.raises(ConfigError, match=r"absent\.pem, expected PEM: No such file"):
        Tls(ca_file=str(tmp_path / "absent.pem")).context()
    with pytest.raises(ConfigError, match=r"empty\.pem: expected a certificate with its private key"):
        Tls(certificate_file=str(empty)).context()
