"""Addresses and the familiar names of settings."""

from __future__ import annotations

import pytest

from fencepost.client.cluster.addresses import Address, parse_address, parse_servers
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        (" kafka.example ", Address("kafka.example", 9092)),
        ("[::1]:1234", Address("::1", 1234)),
        ("[::1]", Address("::1", 9092)),
        ("fe80::1", Address("fe80::1", 9092)),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", ":9092", "host:", "host:x", "host:0", "host:65536", "[::1", "[::1]x", "host:٣"])
def test_what_is_no_address_is_shown_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected host:port, for example 127\.0\.0\.1:9092"):
        parse_address(text)


def test_an_ipv6_address_is_written_back_as_it_is_typed() -> None:
    assert str(parse_address("[::1]:1234")) == "[::1]:1234"


def test_several_servers_are_separated_by_commas() -> None:
    assert parse_servers("a:1, b:2,") == (Address("a", 1), Address("b", 2))
    with pytest.raises(ConfigError, match="no server given"):
        parse_servers(" , ")


def test_names_of_librdkafka_and_java_mean_the_same_field() -> None:
    librdkafka = ClientSettings.from_config({"metadata.broker.list": "a:1", "socket.timeout.ms": "1500"})
    java = ClientSettings.from_config({"bootstrap.servers": "a:1", "request.timeout.ms": "1500"})
    assert librdkafka == java
    assert java.request_timeout == 1.5


def test_a_misspelt_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'bootstrap\.server'; did you mean 'bootstrap\.servers'\?"):
        ClientSettings.from_config({"bootstrap.server": "a:1"})


def test_a_name_like_no_other_is_answered_without_a_guess() -> None:
    with pytest.raises(ConfigError, match=r"^unknown setting 'zzz'$"):
        ClientSettings.from_config({"zzz": "1"})


@pytest.mark.parametrize("value", ["0", "-1", "soon", ""])
def test_a_timeout_is_a_positive_number_of_milliseconds(value: str) -> None:
    with pytest.raises(ConfigError, match=r"request\.timeout\.ms must be a positive number of milliseconds"):
        ClientSettings.from_config({"request.timeout.ms": value})
