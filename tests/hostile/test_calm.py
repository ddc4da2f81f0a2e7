"""What the bystander feels when nobody attacks: the line to compare all others with."""

from __future__ import annotations

import pytest

from tests.support.attacks import Siege
from tests.support.raw import API_VERSIONS

pytestmark = pytest.mark.hostile


def test_ordinary_requests_beside_it_do_not_hold_up_a_bystander(siege: Siege) -> None:
    with siege.attack("none: ordinary requests"), siege.connect() as client:
        for _ in range(siege.size(500, 20_000)):
            client.call(API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
