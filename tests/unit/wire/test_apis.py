"""The table of APIs against kio's definitions."""

from __future__ import annotations

import pytest
from kio.schema.index import api_key_map, schema_name_map

from fencepost.wire import apis
from tests.unit.wire.kio_messages import EVERY_MESSAGE, message_class

pytestmark = pytest.mark.unit


def test_every_api_that_kio_knows_is_in_the_table_with_the_versions_kio_has() -> None:
    """A newer kio may have more: then this fails, and what is new is looked at before it is spoken."""
    known = {key: (min(schema_name_map[name]), max(schema_name_map[name])) for key, name in api_key_map.items()}
    assert {key: apis.versions(key) for key in apis.APIS if key < apis.Key.OWN} == known


def test_name_and_flexibility_are_those_of_the_message_itself() -> None:
    for key, version, direction in EVERY_MESSAGE:
        kind = message_class(key, version, direction)
        assert kind.__name__ == apis.API_NAMES[key] + direction.title()
        assert kind.__flexible__ == apis.is_flexible(key, version), (kind, version)


def test_keys_have_the_names_of_the_table() -> None:
    for key in apis.Key:
        assert key.name.replace("_", "") == apis.API_NAMES[key].upper()


def test_versions_beyond_the_known_ones_are_flexible_if_the_highest_is() -> None:
    assert apis.is_flexible(apis.Key.API_VERSIONS, 99)
    assert not apis.is_flexible(17, 99)  # SaslHandshake never is


def test_own_is_one_of_them() -> None:
    assert apis.versions(10_000) == apis.versions(10_001) == (0, 1)
    assert apis.API_NAMES[10_000] == "Own"
    assert apis.is_flexible(10_000, 0)
