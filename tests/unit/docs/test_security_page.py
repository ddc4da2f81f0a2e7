"""docs/security.md lists the permissions of every API as the server checks them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.core.security.access import NEEDS
from fencepost.wire.apis import API_NAMES

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[3] / "docs" / "security.md"


def test_the_page_lists_the_permissions_of_every_api() -> None:
    rows = [f"| {API_NAMES[key]} | {', '.join(map(str, needs)) or 'nothing'} |" for key, needs in NEEDS.items()]
    listed = PAGE.read_text().split("| API | permissions |\n|---|---|\n")[1].splitlines()
    assert listed[: len(rows)] == rows
