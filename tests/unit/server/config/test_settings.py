"""Settings of a server: which values it rejects, and the messages."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigError
from fencepost.server.config.addresses import is_loopback, parse_address
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.loading import Sources
from fencepost.server.config.settings import ServerConfig

pytestmark = pytest.mark.unit


def given(options: dict[str, str]) -> ServerConfig:
    return Sources(None, {}, options).load()


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "192.0.2.1:9092", "[::]:9092", "example:9092"])
def test_listening_beyond_loopback_is_refused_unless_insecure_says_so(listen: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        ServerConfig(listen=listen)
    assert ServerConfig(listen=listen, insecure=True).listen == listen


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("address", ["", "9092", ":9092", "host:", "host:port", "host:70000", "host:-1"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_address(address)


def test_addresses_of_both_families_are_understood() -> None:
    assert parse_address("localhost:9092") == ("localhost", 9092)
    assert parse_address("[::1]:0") == ("::1", 0)


def test_options_are_parsed_by_the_type_of_the_setting() -> None:
    config = given({"auto.create.topics": "false", "default-partitions": "4", "sync": "os"})
    assert (config.auto_create_topics, config.default_partitions, config.sync) == (False, 4, "os")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"default.partition": "3"}, "did you mean 'default_partitions'"),
        ({"default.partitions": "many"}, "whole number"),
        ({"default.partitions": "0"}, "must be from 1 to 100000, not 0"),
        ({"open_files": "0"}, "open_files must be from 1 to 2147483647, not 0"),
        ({"max_connections": "-1"}, "max_connections must be from 1 to "),
        ({"drain_ms": "-5"}, "drain_ms must be from 0 to "),
        ({"fetch_max_bytes": "0"}, "fetch_max_bytes must be from 1 to "),
        ({"request_memory": "0"}, "request_memory must be from 1 to "),
        ({"background_interval_ms": "0"}, "background_interval_ms must be from 1 to "),
        ({"producer_expiry_ms": "-1"}, "producer_expiry_ms must be from 1 to "),
        ({"node_id": "-1"}, "node_id must be from 0 to "),
        ({"group_min_session_timeout_ms": "1800001"}, "is above group_max_session_timeout_ms=1800000"),
        ({"auto.create.topics": "perhaps"}, "true or false"),
        ({"sync": "sometimes"}, "'always' or 'os'"),
    ],
)
def test_a_wrong_option_is_named_in_the_message(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        given(options)


def test_a_listener_with_logins_needs_mechanisms_that_the_server_knows() -> None:
    with pytest.raises(ConfigError, match=r"^listeners.outside.mechanisms must name some of .*, not SCRAM-SHA-1$"):
        ListenerConfig(name="outside", protocol="sasl_plaintext", mechanisms=("SCRAM-SHA-1",))
    with pytest.raises(ConfigError, match=r"^listeners.outside.mechanisms must name some of .*, not nothing$"):
        ListenerConfig(name="outside", protocol="sasl_plaintext", mechanisms=())


def test_super_users_are_principals() -> None:
    with pytest.raises(ConfigError, match=r"^authorization.super_users: a principal must be TYPE:NAME"):
        ServerConfig(authorization_super_users=("admin",))
