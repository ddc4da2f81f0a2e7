"""Quotas through a `RawClient`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fencepost.errors import ErrorCode
from tests.support.raw import RawClient

DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49

Pairs = Sequence[tuple[str, Any]]


class Refusal(NamedTuple):
    code: ErrorCode


def alter_entries(
    client: RawClient, *entries: tuple[Pairs, Pairs], validate_only: bool = False, version: int = 1
) -> dict[frozenset[tuple[str, Any]], ErrorCode]:
    """Set quotas, or remove those whose value is None; return the outcome of each entity."""
    rows = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [
                {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                for key, value in operations
            ],
        }
        for entity, operations in entries
    ]
    answer = client.call(ALTER_CLIENT_QUOTAS, version, entries=rows, validate_only=validate_only)
    return {
        frozenset((part.entity_type, part.entity_name) for part in row.entity): ErrorCode.of(row.error_code)
        for row in answer.entries
    }


def alter(client: RawClient, entity: Mapping[str, str | None], **quotas: float | None) -> ErrorCode:
    """Set or remove the quotas of one entity; `client_id` stands for `client-id`."""
    parts = [(kind.replace("_", "-"), name) for kind, name in entity.items()]
    [code] = alter_entries(client, (parts, list(quotas.items()))).values()
    return code


def describe(
    client: RawClient, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[frozenset[tuple[str, Any]], dict[str, float]] | Refusal:
    """Return the quotas by entity, or the refusal."""
    rows = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    answer = client.call(DESCRIBE_CLIENT_QUOTAS, version, components=rows, strict=strict)
    if answer.error_code != ErrorCode.NONE:
        assert answer.entries is None
        return Refusal(ErrorCode.of(answer.error_code))
    return {
        frozenset((part.entity_type, part.entity_name) for part in row.entity): {
            each.key: each.value for each in row.values
        }
        for row in answer.entries
    }
