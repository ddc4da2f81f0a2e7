"""Configs of topics."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigError
from fencepost.server.storage.topic_config import KNOWN, check_config, log_config

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("config", KNOWN.values(), ids=lambda config: config.name)
def test_every_default_is_a_legal_value(config: object) -> None:
    assert check_config(config.name, config.default) == config.default  # type: ignore[attr-defined]


def test_an_unknown_config_is_told_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'retention\.ms'"):
        check_config("retention.millis", "1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "delete,shred"),
        ("message.timestamp.type", "createtime"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("max.message.bytes", None),
        ("preallocate", "maybe"),
    ],
)
def test_a_wrong_value_is_refused_with_the_reason(name: str, value: str | None) -> None:
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        check_config(name, value)


def test_the_log_is_told_what_it_needs() -> None:
    config = log_config(
        {"segment.bytes": "1000", "cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
        producer_expiry_ms=5,
    )
    assert config.segment_bytes == 1000
    assert config.compacts
    assert config.deletes
    assert config.append_time
    assert config.producer_expiry_ms == 5
    assert config.retention_ms == 7 * 24 * 3600 * 1000
