"""What the tests of faults share: chance with a seed that is printed, and a server of its own process."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

import fencepost


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("FENCEPOST_SEED", time.time_ns() % 2**32))
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(params=["os", "always"])
def server_by_sync(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fencepost.Server]:
    sync: Literal["os", "always"] = request.param
    with fencepost.Server(tmp_path, sync=sync, process=True) as running:
        yield running
