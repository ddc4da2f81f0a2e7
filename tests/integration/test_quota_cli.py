"""`fencepost quota` and `Admin`'s quotas, on our server and on Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fencepost import Admin
from fencepost.errors import ErrorCode, ServerError
from tests.integration.conftest import TestedServer

pytestmark = pytest.mark.integration


def quota(*arguments: str, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fencepost", "quota", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


def test_admin_manages_quotas(server: TestedServer, name: str) -> None:
    entity = {"client-id": None, "user": name}
    with Admin(server.address) as admin:
        admin.set_quotas(entity, {"producer_byte_rate": 1_000_000, "request_percentage": 12.5})
        admin.set_quotas({"user": name}, {"consumer_byte_rate": 5})
        while len(admin.quotas({"user": name})) < 2:  # a broker of Apache Kafka sees each a little later
            pass
        [pair] = admin.quotas(entity)
        assert (pair.entity, pair.quotas) == (entity, {"producer_byte_rate": 1_000_000, "request_percentage": 12.5})
        admin.set_quotas(entity, {"producer_byte_rate": None})
        while "producer_byte_rate" in admin.quotas(entity)[0].quotas:
            pass
        assert admin.remove_quotas(entity) == ["request_percentage"]
        assert admin.remove_quotas({"user": name}, ["consumer_byte_rate"]) == ["consumer_byte_rate"]
        while admin.quotas({"user": name}):
            pass
        with pytest.raises(ServerError, match="there is no quota for user") as caught:
            admin.remove_quotas({"user": name})
        assert caught.value.code is ErrorCode.RESOURCE_NOT_FOUND


def test_quotas_are_set_listed_and_removed(ours: TestedServer, name: str) -> None:
    at = ("--servers", ours.address)
    said = quota("set", "producer_byte_rate=1000000", "request_percentage=12.5", "--user", name, *at)
    assert said == f"set producer_byte_rate, request_percentage of user {name}\n"
    quota("set", "consumer_byte_rate=7", "--user", name, "--default-client-id", *at)
    lines = quota("list", "--user", name, *at).splitlines()
    assert [line.split() for line in lines] == [
        ["USER", "CLIENT-ID", "IP", "QUOTA", "VALUE"],
        [name, "<default>", "-", "consumer_byte_rate", "7"],
        [name, "-", "-", "producer_byte_rate", "1000000"],
        [name, "-", "-", "request_percentage", "12.5"],
    ]
    assert json.loads(quota("list", "--user", name, "--default-client-id", "--json", *at)) == [
        {"entity": {"client-id": None, "user": name}, "quotas": {"consumer_byte_rate": 7}}
    ]
    assert json.loads(quota("remove", "producer_byte_rate", "--user", name, "--json", *at)) == {
        "entity": {"user": name},
        "removed": ["producer_byte_rate"],
    }
    quota("remove", "--user", name, *at)
    quota("remove", "--user", name, "--default-client-id", *at)
    assert quota("list", "--user", name, *at) == "no quotas\n"


def test_mistakes_are_named(ours: TestedServer) -> None:
    at = ("--servers", ours.address)
    assert "say whom the quota is for" in quota("set", "producer_byte_rate=1", *at, expect=2)
    assert "must be a number, not 'fast'" in quota("set", "producer_byte_rate=fast", "--user", "a", *at, expect=2)
    assert "cannot be used together" in quota("list", "--user", "a", "--default-user", *at, expect=2)
    unknown = quota("set", "producer_rate=1", "--user", "a", *at, expect=1)
    assert "'producer_rate' is no quota for user 'a'; use producer_byte_rate" in unknown
    assert "there is no quota for user 'nobody'" in quota("remove", "--user", "nobody", *at, expect=1)
    assert "is not an IP address" in quota("set", "connection_creation_rate=1", "--ip", "x", *at, expect=1)
