"""The table of quotas against a model that reads like Kafka's documentation: the eight levels, one after the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    IP,
    USER,
    Component,
    Entity,
    Match,
    QuotaTable,
    entity_of,
    read_filter,
)

pytestmark = pytest.mark.model

NAMES = st.sampled_from(["a", "b"])
NAMES_OR_DEFAULT = st.none() | NAMES
KEYS = st.sampled_from(CLIENT_KEYS[:2])
ENTITIES = st.one_of(
    st.builds(lambda user: {USER: user}, NAMES_OR_DEFAULT),
    st.builds(lambda client: {CLIENT_ID: client}, NAMES_OR_DEFAULT),
    st.builds(lambda user, client: {USER: user, CLIENT_ID: client}, NAMES_OR_DEFAULT, NAMES_OR_DEFAULT),
    st.builds(lambda ip: {IP: ip}, NAMES_OR_DEFAULT),
).map(entity_of)
CHANGES = st.lists(st.tuples(ENTITIES, KEYS, st.none() | st.floats(1, 100)), max_size=25)
ABSENT = "absent"
LEVELS = [
    ("own", "own"),
    ("own", "default"),
    ("own", ABSENT),
    ("default", "own"),
    ("default", "default"),
    ("default", ABSENT),
    (ABSENT, "own"),
    (ABSENT, "default"),
]
"""How a quota names the user and the client id, the strongest first."""


def apply(changes: list[tuple[Entity, str, float | None]]) -> tuple[QuotaTable, dict[tuple[Entity, str], float]]:
    table = QuotaTable()
    model: dict[tuple[Entity, str], float] = {}
    for entity, key, value in changes:
        table.set(entity, key, value)
        if value is None:
            model.pop((entity, key), None)
        else:
            model[entity, key] = value
    return table, model


@given(CHANGES, NAMES, NAMES, KEYS)
def test_the_most_specific_quota_applies(
    changes: list[tuple[Entity, str, float | None]], user: str, client_id: str, key: str
) -> None:
    table, model = apply(changes)
    expected = None
    for user_by, client_by in LEVELS:
        parts = {}
        if user_by != ABSENT:
            parts[USER] = user if user_by == "own" else None
        if client_by != ABSENT:
            parts[CLIENT_ID] = client_id if client_by == "own" else None
        rate = model.get((entity_of(parts), key))
        if rate is not None:
            shared_by = (key, user if user_by != ABSENT else None, client_id if client_by != ABSENT else None)
            expected = (rate, shared_by)
            break
    assert table.of_client(user, client_id, key) == expected
    assert len(table) == len(model)
    assert table.limits_clients == any(key in CLIENT_KEYS for _, key in model)


@given(CHANGES, NAMES, KEYS)
def test_an_address_has_its_own_quota_or_the_default(
    changes: list[tuple[Entity, str, float | None]], address: str, key: str
) -> None:
    table, model = apply(changes)
    expected = model.get((((IP, address),), key), model.get((((IP, None),), key)))
    assert table.of_address(address, key) == expected


MATCHES = st.one_of(
    st.tuples(st.just(Match.EXACT), NAMES), st.tuples(st.sampled_from([Match.DEFAULT, Match.ANY]), st.none())
)


@given(CHANGES, st.dictionaries(st.sampled_from([USER, CLIENT_ID]), MATCHES), st.booleans())
def test_a_filter_chooses_the_entities_that_fit_all_its_components(
    changes: list[tuple[Entity, str, float | None]], wanted: dict[str, tuple[Match, str | None]], strict: bool
) -> None:
    table, model = apply(changes)
    expected: dict[Entity, dict[str, float]] = {}
    for (entity, key), value in model.items():
        parts = dict(entity)
        fits = not strict or set(parts) == set(wanted)
        for kind, (match, name) in wanted.items():
            fits = fits and kind in parts and (match is Match.ANY or parts[kind] == name)
        if fits:
            expected.setdefault(entity, {})[key] = value
    found = read_filter((Component(kind, *how) for kind, how in wanted.items()), strict=strict)
    assert dict(table.matching(found)) == expected
