"""The commands of `python -m bench`: wrong input."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bench.__main__ import main

pytestmark = pytest.mark.unit


def test_a_size_that_no_plan_has_is_refused_in_one_line_before_any_broker_starts() -> None:
    result = CliRunner().invoke(main, ["clients", "--size", "7"])
    assert result.exit_code == 2
    assert result.output.splitlines()[-1] == "Error: Invalid value for '--size': '7' is not one of '100', '1024'."
