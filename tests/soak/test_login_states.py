"""The long form of `tests/hostile/test_login_states.py`: strangers try for FENCEPOST_SOAK_SECONDS (60)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.login_fuzz import besiege, open_gate

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("FENCEPOST_SOAK_SECONDS", "60"))


def test_strangers_stay_outside_for_long(tmp_path: Path) -> None:
    """FENCEPOST_SEED repeats a run."""
    seed = int(os.environ.get("FENCEPOST_SEED", random.SystemRandom().getrandbits(32)))
    with open_gate(tmp_path) as gate:
        besiege(gate, seed, seconds=SECONDS, most_mib=150)
