"""Principals as Kafka writes them."""

from __future__ import annotations

import pytest

from fencepost.core.security.principal import ANONYMOUS, Principal, parse_principal
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("text", ["User:alice", "User:CN=a,O=b", "Group:a:b", str(ANONYMOUS)])
def test_a_principal_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_principal(text)) == text


def test_a_name_may_contain_colons() -> None:
    assert parse_principal("User:a:b") == Principal("User", "a:b")


@pytest.mark.parametrize("text", ["", "alice", "User:", ":alice"])
def test_a_text_without_type_or_name_is_no_principal(text: str) -> None:
    with pytest.raises(ConfigError, match="TYPE:NAME"):
        parse_principal(text)
