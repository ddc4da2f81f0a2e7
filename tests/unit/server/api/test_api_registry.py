"""The registry of APIs, compared with the versions that the wire layer supports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost.server import api
from fencepost.server.api import APIS
from fencepost.wire import messages

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("key", APIS)
def test_every_api_has_kafkas_name_and_versions_that_the_wire_speaks(key: int) -> None:
    served = APIS[key]
    lowest, highest = messages.versions(key)
    assert served.name == messages.API_NAMES[key]
    assert lowest <= served.versions[0] <= served.versions[1] <= highest


def test_files_are_named_by_key_and_name() -> None:
    files = sorted(path.stem for path in Path(api.__file__).parent.glob("k*.py"))
    expected = sorted(f"k{a.key:02}_{re.sub(r'(?<!^)(?=[A-Z])', '_', a.name).lower()}" for a in APIS.values())
    assert files == expected
