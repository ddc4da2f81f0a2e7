"""What cannot be meant is said by its name, when it is given: before anything is connected to."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression_level", 99),
        ("compression_level", "x"),
        ("name", 5),
        ("name", ""),
        ("ids", "x"),
        ("batch_size", "x"),
        ("batch_size", 1.5),
        ("batch_size", 0),
        ("linger", "x"),
        ("linger", -1),
        ("request_timeout", None),
        ("request_timeout", float("inf")),
        ("transaction_timeout", float("inf")),
        ("delivery_timeout", float("nan")),
        ("block_timeout", -1),
        ("partitioner", 5),
        ("key_serializer", 3),
        ("value_serializer", 3),
        ("on_error", 5),
    ],
)
def test_a_setting_of_a_producer_that_cannot_be_meant_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}="):
        Producer(NOBODY, compression="gzip", **{name: value})


@pytest.mark.parametrize(
    ("compression", "level"), [("none", 3), ("snappy", 1), ("gzip", 10), ("lz4", 99), ("zstd", 100), ("zstd", True)]
)
def test_a_level_that_the_codec_does_not_have_is_refused(compression: Any, level: int) -> None:
    with pytest.raises(ConfigError, match=f"compression_level={level}: .*{compression}.* has (no|the) levels"):
        Producer(NOBODY, compression=compression, compression_level=level)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "lz4", "zstd"])
def test_the_default_level_of_librdkafka_goes_with_every_codec(compression: Any) -> None:
    Producer(NOBODY, compression=compression, compression_level=-1).close()


@pytest.mark.parametrize("name", ["request_timeout", "connect_timeout"])
def test_an_impossible_timeout_of_a_connection_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=nan: expected a positive number of seconds"):
        ClientSettings((Address("127.0.0.1", 1),), **{name: float("nan")})  # type: ignore[arg-type]


def test_a_setting_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'linger_ms'; did you mean 'linger'\?"):
        Producer(NOBODY, linger_ms=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_wait", -1),
        ("max_wait", float("inf")),
        ("partition_bytes", 0),
        ("prefetch_bytes", "x"),
        ("patience", 0),
        ("group", ""),
        ("topics", []),
    ],
)
def test_a_setting_of_a_reader_that_cannot_be_meant_is_named(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"topics": "t", name: value}
    with pytest.raises(ConfigError, match=f"{name}="):
        Reader(NOBODY, **arguments)


@pytest.mark.parametrize("servers", [None, 5, [None], {"a": 1}])
def test_servers_that_are_no_addresses_are_refused(servers: Any) -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        Producer(servers)


def test_servers_may_be_a_list() -> None:
    one, other = Address("a", 1), Address("b", 2)
    for servers in (["a:1", "b:2"], ("a:1", other), [one, other], ["a:1,b:2"], "a:1,b:2"):
        assert ClientSettings.of(servers).servers == (one, other)
    with pytest.raises(ConfigError, match="no server given"):
        ClientSettings.of([])


def test_a_topic_is_not_taken_for_a_list_of_letters() -> None:
    admin: Any = Admin(NOBODY)
    with pytest.raises(TypeError, match="names must be a list of names"):
        admin.delete_topics("name")
    with pytest.raises(TypeError, match="remove must be a list of names"):
        admin.alter_topic("t", {}, remove="retention.ms")


def test_a_topic_that_is_no_text_is_not_created() -> None:
    admin: Any = Admin(NOBODY)
    with pytest.raises(TypeError, match="topic must be a str, not int"):
        admin.create_topic(5)


@pytest.mark.parametrize(
    ("timestamp", "kind", "message"),
    [
        (1 << 80, ValueError, "timestamp must be milliseconds since 1970 that fit into 64 bits, not 12089258196"),
        (1 << 63, ValueError, "timestamp must be milliseconds"),
        ("now", TypeError, "timestamp must be an int, not str"),
    ],
)
def test_send_names_a_timestamp_that_no_record_can_have(timestamp: Any, kind: type[Exception], message: str) -> None:
    with Producer(NOBODY, delivery_timeout=0.1) as producer, pytest.raises(kind, match=message):
        producer.send("orders", b"value", timestamp=timestamp)
