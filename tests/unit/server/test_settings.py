"""Settings of a server: what is refused, and with which words."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigError
from fencepost.server.settings import ServerConfig, is_loopback, parse_address

pytestmark = pytest.mark.unit


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
    config = ServerConfig().with_options({"auto.create.topics": "false", "default-partitions": "4", "sync": "os"})
    assert (config.auto_create_topics, config.default_partitions, config.sync) == (False, 4, "os")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"default.partition": "3"}, "did you mean 'default_partitions'"),
        ({"default.partitions": "many"}, "whole number"),
        ({"default.partitions": "0"}, "at least 1"),
        ({"auto.create.topics": "perhaps"}, "true or false"),
        ({"sync": "sometimes"}, "'always' or 'os'"),
    ],
)
def test_a_wrong_option_is_named_in_the_message(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServerConfig().with_options(options)
