"""A short run of the fuzzer; the long one, under AddressSanitizer, is `make sanitize`."""

from __future__ import annotations

import secrets

import pytest

from tests.fuzz.fuzzer import fuzz

pytestmark = pytest.mark.unit


def test_broken_input_is_refused_alike_by_both_implementations() -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    outcomes = fuzz(2_000, seed)
    assert outcomes["refused"] > 500
    assert outcomes["sound"] > 20
