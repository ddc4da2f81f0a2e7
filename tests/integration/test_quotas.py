"""Quotas: the answers of both APIs, on fencepost's server and on Apache Kafka, and their life in the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.quotas import Pairs, Refusal, alter, alter_entries, describe
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

NAN = float("nan")
OK = ErrorCode.NONE
INVALID = ErrorCode.INVALID_REQUEST


def until(read: Callable[[], Any], wanted: Any) -> None:
    """Kafka's broker shows a change only a moment after it has answered."""
    while read() != wanted:
        pass


def key_of(*parts: tuple[str, str | None]) -> frozenset[tuple[str, str | None]]:
    return frozenset(parts)


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(client: RawClient, name: str, version: int) -> None:
    entity = [("user", name), ("client-id", None)]
    quotas = {
        "producer_byte_rate": 1000.0,
        "consumer_byte_rate": 5.0,
        "request_percentage": 50.5,
        "controller_mutation_rate": 1.5,
    }
    assert alter_entries(client, (entity, list(quotas.items())), version=version) == {key_of(*entity): OK}
    until(lambda: describe(client, ("user", 0, name), version=version), {key_of(*entity): quotas})
    removed = [("consumer_byte_rate", None), ("request_percentage", 20.25)]
    assert alter_entries(client, (entity, removed), version=version) == {key_of(*entity): OK}
    del quotas["consumer_byte_rate"]
    quotas["request_percentage"] = 20.25
    until(lambda: describe(client, ("user", 0, name)), {key_of(*entity): quotas})
    assert alter_entries(client, (entity, [(key, None) for key in quotas])) == {key_of(*entity): OK}
    until(lambda: describe(client, ("user", 0, name)), {})


PRODUCE = "producer_byte_rate"
CONNECT = "connection_creation_rate"
CASES: dict[str, tuple[Pairs, Pairs, ErrorCode | str]] = {
    "an address": ([("ip", "1.2.3.4")], [(CONNECT, 10.0)], OK),
    "an address of IPv6": ([("ip", "::1")], [(CONNECT, 10.0)], OK),
    "the default address": ([("ip", None)], [(CONNECT, 10.0)], OK),
    "a host": ([("ip", "localhost")], [(CONNECT, 10.0)], "a quota for the name of a host"),
    "no address": ([("ip", "no.such.host.invalid")], [(CONNECT, 10.0)], INVALID),
    "a fraction of a connection": ([("ip", "1.2.3.4")], [(CONNECT, 10.5)], INVALID),
    "too many connections": ([("ip", "1.2.3.4")], [(CONNECT, 2.0**31)], INVALID),
    "bytes of an address": ([("ip", "1.2.3.4")], [(PRODUCE, 10.0)], INVALID),
    "no bytes of an address": ([("ip", "1.2.3.4")], [(PRODUCE, None)], OK),
    "connections of a user": ([("user", "a")], [(CONNECT, 10.0)], INVALID),
    "an address and a user": ([("ip", "1.2.3.4"), ("user", "a")], [(CONNECT, 10.0)], INVALID),
    "an unknown key": ([("user", "a")], [("nonsense", 1.0)], INVALID),
    "an unknown key to remove": ([("user", "a")], [("nonsense", None)], OK),
    "a quota to remove that is not there": ([("user", "nobody")], [(PRODUCE, None)], OK),
    "nothing to do": ([("user", "a")], [], OK),
    "zero": ([("user", "a")], [(PRODUCE, 0.0)], INVALID),
    "a negative rate": ([("user", "a")], [(PRODUCE, -1.0)], INVALID),
    "a fraction of a byte": ([("user", "a")], [(PRODUCE, 1.5)], INVALID),
    "nearly a whole number": ([("user", "a")], [(PRODUCE, 1.0000000001)], OK),
    "too many bytes": ([("user", "a")], [(PRODUCE, 1e19)], INVALID),
    "infinite bytes": ([("user", "a")], [(PRODUCE, float("inf"))], INVALID),
    "not a number": ([("user", "a")], [(PRODUCE, NAN)], "a quota that is not a number"),
    "no percentage": ([("user", "a")], [("request_percentage", 0.0)], INVALID),
    "an entity without types": ([], [(PRODUCE, 1.0)], INVALID),
    "an empty name": ([("user", "")], [(PRODUCE, 1.0)], INVALID),
    "an unknown type": ([("nonsense", "a")], [(PRODUCE, 1.0)], INVALID),
    "a key twice": ([("user", "a")], [(PRODUCE, 1.0), (PRODUCE, 2.0)], INVALID),
}


@pytest.mark.parametrize("case", CASES)
def test_both_servers_refuse_the_same_quotas(server: TestedServer, client: RawClient, case: str) -> None:
    entity, operations, expected = CASES[case]
    code = server.answer_to(expected) if isinstance(expected, str) else expected
    assert alter_entries(client, (entity, operations), validate_only=True) == {key_of(*entity): code}


def test_a_request_to_validate_changes_nothing(client: RawClient, name: str) -> None:
    entity = [("user", name)]
    assert alter_entries(client, (entity, [(PRODUCE, 1.0)]), validate_only=True) == {key_of(*entity): OK}
    assert describe(client, ("user", 0, name)) == {}


def test_an_entity_is_refused_as_a_whole_and_others_are_not(client: RawClient, name: str) -> None:
    half = [("client-id", f"half-{name}")]
    twice = [("client-id", f"twice-{name}")]
    good = [("client-id", f"good-{name}")]
    outcomes = alter_entries(
        client,
        (half, [(PRODUCE, 1.0), ("nonsense", 1.0)]),
        (twice, [(PRODUCE, 1.0)]),
        (good, [(PRODUCE, 3.0)]),
        (twice, [(PRODUCE, 2.0)]),
    )
    assert outcomes == {key_of(*half): INVALID, key_of(*twice): INVALID, key_of(*good): OK}
    until(lambda: describe(client, ("client-id", 0, f"good-{name}")), {key_of(*good): {PRODUCE: 3.0}})
    assert describe(client, ("client-id", 0, f"half-{name}")) == {}


def test_filters_choose_by_name_default_or_type(client: RawClient, name: str) -> None:
    alone, with_default, with_client = (
        key_of(("user", name)),
        key_of(("user", name), ("client-id", None)),
        key_of(("user", name), ("client-id", name)),
    )
    for entity in (alone, with_default, with_client):
        assert alter_entries(client, (sorted(entity), [(PRODUCE, 7.0)])) == {entity: OK}

    def chosen(*components: tuple[str, int, str | None], strict: bool = False) -> set[Any]:
        found = describe(client, *components, strict=strict)
        assert not isinstance(found, Refusal)
        return {entity for entity in found if ("user", name) in entity}

    user = ("user", 0, name)
    until(lambda: chosen(user), {alone, with_default, with_client})
    assert chosen() == {alone, with_default, with_client}
    assert chosen(user, strict=True) == {alone}
    assert chosen(user, ("client-id", 2, None)) == {with_default, with_client}
    assert chosen(user, ("client-id", 2, None), strict=True) == {with_default, with_client}
    assert chosen(user, ("client-id", 1, None)) == {with_default}
    assert chosen(user, ("client-id", 0, name)) == {with_client}
    assert chosen(("user", 1, None)) == set()
    assert chosen(strict=True) == set()


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", 0, None)], INVALID),
        ([("user", 1, "a")], INVALID),
        ([("user", 2, "a")], INVALID),
        ([("user", 3, None)], INVALID),
        ([("user", 0, "a"), ("user", 1, None)], INVALID),
        ([("", 0, "a")], INVALID),
        ([("nonsense", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("ip", 2, None), ("user", 2, None)], INVALID),
    ],
)
def test_both_servers_refuse_the_same_filters(
    client: RawClient, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert describe(client, *components) == Refusal(code)


def test_an_address_has_one_spelling(tmp_path: Path) -> None:
    """The answer keeps the spelling of the request, because Kafka's clients look for it there."""
    odd, plain = "2001:DB8:0::1", key_of(("ip", "2001:db8::1"))
    with fencepost.Server(tmp_path) as server, RawClient(server.address) as client:
        assert alter_entries(client, ([("ip", odd)], [(CONNECT, 5.0)])) == {key_of(("ip", odd)): OK}
        assert describe(client, ("ip", 0, odd)) == describe(client, ("ip", 0, "2001:db8::1")) == {plain: {CONNECT: 5.0}}
        assert alter(client, {"ip": "2001:db8::0:1"}, connection_creation_rate=None) is OK
        assert describe(client) == {}


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server, RawClient(server.address) as client:
        assert alter(client, {"user": "a", "client_id": None}, producer_byte_rate=1000) is OK
        assert alter(client, {"ip": None}, connection_creation_rate=1000) is OK
        before = describe(client)
    with fencepost.Server(tmp_path) as server, RawClient(server.address) as client:
        assert describe(client) == before != {}


def test_a_change_of_quotas_is_in_the_audit_log(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    with fencepost.Server(tmp_path / "data", audit_file=log) as server, RawClient(server.address) as client:
        for rate in (1000, 1000, 2000):  # the second changes nothing
            assert alter(client, {"user": "a", "client_id": None}, producer_byte_rate=rate) is OK
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    changes = [row for row in rows if row["event"] == "config.changed"]
    assert [(row["resource_type"], row["resource"], row["before"], row["after"]) for row in changes] == [
        ("QUOTA", "default client-id, user 'a'", {}, {"producer_byte_rate": 1000.0}),
        ("QUOTA", "default client-id, user 'a'", {"producer_byte_rate": 1000.0}, {"producer_byte_rate": 2000.0}),
    ]
