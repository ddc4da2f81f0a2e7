"""Attacks by clients without any permission, with lists as long as they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.attacks import Siege, besieged

pytestmark = pytest.mark.hostile

CREATE_ACLS = 30
DELETE_ACLS = 31
ALTER_USER_SCRAM_CREDENTIALS = 51
ACL = {
    "resource_type": 4, "resource_name": "kafka-cluster", "resource_pattern_type": 3, "principal": "User:admin",
    "host": "*", "operation": 2, "permission_type": 3,
}  # fmt: skip
FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip

REFUSED: dict[str, tuple[int, int, Callable[[int], dict[str, Any]]]] = {
    "AlterUserScramCredentials": (
        ALTER_USER_SCRAM_CREDENTIALS,
        0,
        lambda n: {"deletions": [{"name": f"u{i}", "mechanism": 1} for i in range(n)], "upsertions": []},
    ),
    "CreateAcls": (CREATE_ACLS, 2, lambda n: {"creations": [{**ACL, "resource_name": f"t{i}"} for i in range(n)]}),
    "DeleteAcls": (DELETE_ACLS, 2, lambda n: {"filters": [FILTER] * n}),
}


@pytest.fixture
def strict(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Siege]:
    """A server on which everybody may use all topics, and nobody but an administrator the cluster."""
    with (
        fencepost.Server(
            tmp_path,
            sync="always",
            process=True,
            authorization_enabled=True,
            authorization_allow_everyone_if_no_acl=True,
        ) as server,
        besieged(server, request) as siege,
    ):
        with siege.connect() as client:
            [made] = client.call(CREATE_ACLS, 2, creations=[ACL]).results
            assert made.error_code == ErrorCode.NONE
        yield siege


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_long_list_of_somebody_without_permission_costs_nothing(strict: Siege, name: str) -> None:
    key, version, fields = REFUSED[name]
    count = strict.size(5_000, 20_000 if name == "CreateAcls" else 50_000)
    with strict.attack(f"{name}: {count:,} rows without permission"), strict.connect() as client:
        for _ in range(strict.size(1, 3)):
            answer = client.call(key, version, **fields(count))
            results = getattr(answer, "results", None) or answer.filter_results
            assert len(results) == count
            assert {row.error_code for row in results} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
