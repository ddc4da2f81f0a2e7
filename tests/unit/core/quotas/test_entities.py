"""Names of entities."""

from __future__ import annotations

import pytest

from fencepost.core.quotas import CONNECTION_CREATION_RATE, QuotaTable, entity_of, stored_entity

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("spelling", ["2001:DB8:0::1", "2001:db8::1", "2001:0db8:0:0:0:0:0:0001"])
def test_a_quota_is_for_an_address_however_it_is_spelled(spelling: str) -> None:
    table = QuotaTable()
    table.set(stored_entity(entity_of({"ip": spelling})), CONNECTION_CREATION_RATE, 5.0)
    assert table.of_address("2001:db8::1", CONNECTION_CREATION_RATE) == 5.0
    assert table.of_address("2001:DB8::0:1", CONNECTION_CREATION_RATE) == 5.0


def test_other_names_stay_as_they_are() -> None:
    for entity in (entity_of({"user": "::0:1", "client-id": None}), entity_of({"ip": None}), entity_of({"ip": "x"})):
        assert stored_entity(entity) == entity
