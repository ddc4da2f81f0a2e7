"""Every code block of README.md and docs/ does what it says. Those that need Spark are in tests/spark/test_docs.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from tests.support.pages import PAGES, ROOT, Run, blocks
from tools import mistakes

# Pages import other people's clients too.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WITH_CODE = [page for page in PAGES if any(each.is_executed and not each.needs_spark for each in blocks(page))]


@pytest.fixture(scope="module")
def second() -> Iterator[str]:
    with fencepost.Server() as server:
        yield server.address


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_the_page_runs(page: Path, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fencepost.Server() as server, Run(server.address, second) as run:
        for block in blocks(page):
            if block.is_executed and not block.needs_spark:
                run.execute(block)


def test_typical_mistakes_are_answered_as_the_page_says() -> None:
    """docs/troubleshooting.md: each is made, and answered in one line."""
    text = mistakes.PAGE.read_text(encoding="utf-8")
    assert text == mistakes.page(text), "run `python -m tools.mistakes --write`"
