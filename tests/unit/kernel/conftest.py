"""Every test of the kernel runs on both of its implementations."""

from __future__ import annotations

import pytest

from tests.unit.kernel.implementations import COMPILED, TWIN, Kernel


@pytest.fixture(params=[COMPILED, TWIN], ids=["cython", "python"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    chosen: Kernel = request.param
    return chosen
