"""Users for administrators: their SCRAM credentials, by DescribeUserScramCredentials and AlterUserScramCredentials.

A password is salted and hashed here, and never sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.cluster.blocking import raise_for
from fencepost.core.security.credentials import ITERATIONS, Mechanism, salted_password
from fencepost.errors import ErrorCode, ServerError
from fencepost.wire.apis import Key

_SALT_BYTES: Final = 24


class UserAdmin(PartitionAdmin):
    """Administration of users."""

    def users(self) -> dict[str, dict[str, int]]:
        """Return the users by name; for each, the iterations by mechanism."""
        return {row.user: _mechanisms(row) for row in self._described(None)}

    def set_user_password(self, name: str, password: str, *, iterations: int = ITERATIONS[0]) -> None:
        """Add a user, or change a user's password, for SCRAM-SHA-256 and SCRAM-SHA-512."""
        rows = []
        for mechanism in Mechanism:
            salt = secrets.token_bytes(_SALT_BYTES)
            salted = salted_password(mechanism, password, salt, iterations)
            rows.append(
                {
                    "name": name,
                    "mechanism": int(mechanism),
                    "iterations": iterations,
                    "salt": salt,
                    "salted_password": salted,
                }
            )
        self._alter([], rows)

    def remove_users(self, names: Iterable[str]) -> None:
        """Remove users with all their credentials; raise ServerError if one does not exist."""
        wanted = list(dict.fromkeys(names))
        known = {row.user: row for row in self._described(wanted) if row.error_code == ErrorCode.NONE}
        missing = [name for name in wanted if name not in known]
        if missing:
            raise ServerError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {missing[0]!r}")
        rows = [{"name": name, "mechanism": info.mechanism} for name in wanted for info in known[name].credential_infos]
        self._alter(rows, [])

    def _described(self, names: list[str] | None) -> Any:
        fields = {"users": None if names is None else [{"name": name} for name in names]}
        answer = self._routes.ask(Key.DESCRIBE_USER_SCRAM_CREDENTIALS, fields).message
        raise_for(answer.error_code, "describing users", answer.error_message)
        return answer.results

    def _alter(self, deletions: list[dict[str, Any]], upsertions: list[dict[str, Any]]) -> None:
        """Send one request per mechanism: Apache Kafka refuses a request that names a user twice."""
        for mechanism in Mechanism:
            fields = {
                "deletions": [row for row in deletions if row["mechanism"] == mechanism],
                "upsertions": [row for row in upsertions if row["mechanism"] == mechanism],
            }
            if not any(fields.values()):
                continue
            for row in self._routes.ask(Key.ALTER_USER_SCRAM_CREDENTIALS, fields).message.results:
                raise_for(row.error_code, f"changing user {row.user!r}", row.error_message)


def _mechanisms(row: Any) -> dict[str, int]:
    return {Mechanism(info.mechanism).sasl_name: info.iterations for info in row.credential_infos}
