"""The users: their SCRAM credentials in the metadata store. A password is never stored."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.core.security.credentials import ITERATIONS, Credential, Mechanism, Shape, decoy, derive, shape_of
from fencepost.errors import DataDirectoryError, ErrorCode, ServerError
from fencepost.server.net.turns import paced
from fencepost.server.storage.datadir import DataDirectory
from fencepost.server.storage.store import Statement, Store

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS scram_credentials (
        user TEXT NOT NULL, mechanism INTEGER NOT NULL, salt BLOB NOT NULL, iterations INTEGER NOT NULL,
        stored_key BLOB NOT NULL, server_key BLOB NOT NULL, PRIMARY KEY (user, mechanism)
    ) WITHOUT ROWID""",
)
_SELECT: Final = "SELECT user, mechanism, salt, iterations, stored_key, server_key FROM scram_credentials"
_SAVE: Final = (
    "INSERT OR REPLACE INTO scram_credentials (user, mechanism, salt, iterations, stored_key, server_key) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_DELETE: Final = "DELETE FROM scram_credentials WHERE user = ? AND mechanism = ?"
_SALT_BYTES: Final = 24
_MOST_SHAPES: Final = 8
"""Decoys have one of the most common shapes."""
_STRONGEST_FIRST: Final = (Mechanism.SCRAM_SHA_512, Mechanism.SCRAM_SHA_256)


class UserChange(NamedTuple):
    """A credential to set, or to remove if it is None."""

    user: str
    mechanism: Mechanism
    credential: Credential | None


class Users:
    """All users. The loop uses it; lookups are in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._secret = secrets.token_bytes(32)
        """For the decoys of users who do not exist. A restart changes them, as any password change would."""
        self._credentials: dict[str, dict[Mechanism, Credential]] = {}
        for name, *row in store.query(_SELECT):
            credential = Credential(Mechanism(row[0]), *row[1:])
            self._credentials.setdefault(name, {})[credential.mechanism] = credential
        self._shapes: dict[Mechanism, Counter[Shape]] = {mechanism: Counter() for mechanism in Mechanism}
        """The shapes of all credentials, with their numbers."""
        self._strongest_shapes: Counter[Shape] = Counter()
        """Those of each user's strongest one."""
        for name in self._credentials:
            self._count_shapes(name, 1)

    def _count_shapes(self, name: str, by: int) -> None:
        found = self._credentials.get(name, {})
        for mechanism, credential in found.items():
            self._shapes[mechanism][shape_of(credential)] += by
        if found:
            self._strongest_shapes[shape_of(_strongest(found))] += by

    def __len__(self) -> int:
        return len(self._credentials)

    def __iter__(self) -> Iterator[tuple[str, list[Credential]]]:
        """Yield the users by name, each with its credentials."""
        for name in sorted(self._credentials):
            yield name, [found for _, found in sorted(self._credentials[name].items())]

    def of(self, name: str) -> list[Credential]:
        return [found for _, found in sorted(self._credentials.get(name, {}).items())]

    def get(self, name: str, mechanism: Mechanism) -> Credential | None:
        return self._credentials.get(name, {}).get(mechanism)

    def for_scram(self, name: str, mechanism: Mechanism) -> Credential:
        """Return the user's credential, or one that nobody can tell from it and no password fits."""
        # The decoy is made in any case, because otherwise the time until the answer would tell who exists.
        unknown = decoy(mechanism, name, self._secret, _common(self._shapes[mechanism]))
        return self.get(name, mechanism) or unknown

    def for_plain(self, name: str) -> Credential:
        """Return the user's strongest credential, or one that no password fits."""
        unknown = decoy(_STRONGEST_FIRST[0], name, self._secret, _common(self._strongest_shapes))
        found = self._credentials.get(name)
        return _strongest(found) if found else unknown

    async def alter(self, changes: Sequence[UserChange]) -> None:
        """Store all changes or none, then apply them."""
        await self._store.execute([_statement(change) async for change in paced(changes)])
        async for user, mechanism, credential in paced(changes):
            self._count_shapes(user, -1)
            if credential is not None:
                self._credentials.setdefault(user, {})[mechanism] = credential
            else:
                kept = self._credentials.get(user, {})
                kept.pop(mechanism, None)
                if not kept:
                    self._credentials.pop(user, None)
            self._count_shapes(user, 1)


def _strongest(credentials: Mapping[Mechanism, Credential]) -> Credential:
    return next(credentials[mechanism] for mechanism in _STRONGEST_FIRST if mechanism in credentials)


def _common(shapes: Counter[Shape]) -> list[Shape]:
    return [shape for shape, number in shapes.most_common(_MOST_SHAPES) if number > 0]


def new_credentials(password: str, iterations: int = ITERATIONS[0]) -> list[Credential]:
    """Return a credential per mechanism, each with its own random salt."""
    return [derive(mechanism, password, secrets.token_bytes(_SALT_BYTES), iterations) for mechanism in Mechanism]


def _statement(change: UserChange) -> Statement:
    if change.credential is None:
        return _DELETE, (change.user, int(change.mechanism))
    _, salt, iterations, stored_key, server_key = change.credential
    return _SAVE, (change.user, int(change.mechanism), salt, iterations, stored_key, server_key)


@contextmanager
def offline(data: Path) -> Iterator[Users]:
    """Open the users in the data directory of a server that does not run; it is created if needed."""
    with DataDirectory(data) as directory, closing(Store(directory.store, "always", SCHEMA)) as store:
        yield Users(store)


def set_password(data: Path, name: str, password: str, iterations: int) -> None:
    """Add a user, or change a user's password, in the data directory of a server that does not run."""
    changes = [UserChange(name, each.mechanism, each) for each in new_credentials(password, iterations)]
    with offline(data) as users:
        asyncio.run(users.alter(changes))


def read_users(data: Path) -> dict[str, dict[str, int]]:
    """Return the users in the data directory of a server that does not run, as `Admin.users` does."""
    _check_exists(data)
    with offline(data) as users:
        return {name: {each.mechanism.sasl_name: each.iterations for each in found} for name, found in users}


def remove_users(data: Path, names: Sequence[str]) -> None:
    """Remove users from the data directory of a server that does not run; raise ServerError if one does not exist."""
    _check_exists(data)
    with offline(data) as users:
        for name in names:
            if not users.of(name):
                raise ServerError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}")
        changes = [UserChange(name, each.mechanism, None) for name in dict.fromkeys(names) for each in users.of(name)]
        asyncio.run(users.alter(changes))


def _check_exists(data: Path) -> None:
    if not data.is_dir():
        raise DataDirectoryError(f"there is no data directory {data}")
