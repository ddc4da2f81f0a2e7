"""Administration of quotas: DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.admin.results import ClientQuotas
from fencepost.client.cluster.blocking import raise_for
from fencepost.core.quotas import Match, check_entity, check_value, describe_entity, entity_of
from fencepost.errors import ErrorCode, ServerError
from fencepost.wire.apis import Key


class QuotaAdmin(PartitionAdmin):
    """Administration of quotas.

    An entity is named as in Kafka: {"user": "alice"}, {"client-id": "app"}, both, or {"ip": "192.0.2.7"}. The name None
    stands for the default, which is for all without their own: {"user": None}.
    """

    def quotas(self, entity: Mapping[str, str | None] | None = None) -> list[ClientQuotas]:
        """Return all quotas; or those of entities with these parts, and perhaps others."""
        rows = self._described_quotas((entity or {}).items(), strict=False)
        return [ClientQuotas(_parts(row), _values(row)) for row in rows]

    def set_quotas(self, entity: Mapping[str, str | None], quotas: Mapping[str, float | None]) -> None:
        """Set the quotas of an entity by key, such as {"producer_byte_rate": 1_000_000}; None removes one. Other keys
        stay as they are."""
        wanted = entity_of(entity)
        check_entity(wanted)
        operations = [
            {
                "key": key,
                "value": 0.0 if value is None else check_value(wanted, key, value),
                "remove": value is None,
            }
            for key, value in quotas.items()
        ]
        row = {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in wanted], "ops": operations}
        answer = self._routes.ask(Key.ALTER_CLIENT_QUOTAS, {"entries": [row], "validate_only": False}).message
        for entry in answer.entries:
            raise_for(entry.error_code, f"changing the quotas of {describe_entity(wanted)}", entry.error_message)

    def remove_quotas(self, entity: Mapping[str, str | None], keys: Iterable[str] = ()) -> list[str]:
        """Remove quotas of an entity, all of them if no keys are given, and return the keys. Raise ServerError if there
        is none."""
        wanted = entity_of(entity)
        check_entity(wanted)
        known = {key for row in self._described_quotas(wanted, strict=True) for key in _values(row)}
        chosen = list(dict.fromkeys(keys)) or sorted(known)
        missing = [key for key in chosen if key not in known]
        if missing or not chosen:
            what = missing[0] if missing else "quota"
            raise ServerError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no {what} for {describe_entity(wanted)}")
        self.set_quotas(entity, dict.fromkeys(chosen))
        return chosen

    def _described_quotas(self, parts: Iterable[tuple[str, str | None]], *, strict: bool) -> Any:
        components = [
            {"entity_type": kind, "match_type": int(Match.DEFAULT if name is None else Match.EXACT), "match": name}
            for kind, name in parts
        ]
        fields = {"components": components, "strict": strict}
        answer = self._routes.ask(Key.DESCRIBE_CLIENT_QUOTAS, fields).message
        raise_for(answer.error_code, "describing quotas", answer.error_message)
        return answer.entries or ()


def _parts(row: Any) -> dict[str, str | None]:
    return {part.entity_type: part.entity_name for part in row.entity}


def _values(row: Any) -> dict[str, float]:
    return {each.key: each.value for each in row.values}
