"""docs/wire.md is what the registry says."""

from __future__ import annotations

import pytest

from fencepost.server.api import APIS
from tools.wire_table import ABSENT, KAFKA, NARROWER, PAGE, page

pytestmark = pytest.mark.unit


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run `python -m tools.wire_table --write`"


@pytest.mark.parametrize("key", KAFKA)
def test_every_version_of_kafkas_is_spoken_or_explained(key: int) -> None:
    if key not in APIS:
        assert key in ABSENT
        return
    assert key not in ABSENT
    api = APIS[key]
    lowest = api.versions[0] if api.advertise_from is None else api.advertise_from
    complete = lowest <= KAFKA[key][0] and api.versions[1] >= KAFKA[key][1]
    assert complete != (key in NARROWER)
