"""docs/troubleshooting.md shows what typical mistakes are answered with: each is made, and answered in one line."""

from __future__ import annotations

import pytest

from tools.mistakes import PAGE, page

pytestmark = pytest.mark.integration


def test_typical_mistakes_are_answered_as_the_page_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tools.mistakes --write`"
