"""The benchmark of `own`, where it stands in for the server's objects: it breaks when a guard asks for more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import own
from bench.brokers import Fencepost
from bench.results import Results

pytestmark = pytest.mark.unit


def test_the_check_of_every_append_is_measured(tmp_path: Path) -> None:
    results = Results({})
    own.measure_check(Fencepost(tmp_path, "os"), results, lambda line: None, calls=10)
    [series] = results
    assert len(series.values) == 7
    assert min(series.values) > 0
