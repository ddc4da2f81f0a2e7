"""docs/ builds as a site, without a warning, and the site needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^\">]*", text) == []


def test_what_only_the_tests_read_is_not_shown(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / f"{page.stem}.html").read_text(encoding="utf-8")
        shown = re.sub(r"<!--.*?-->", "", html, flags=re.DOTALL)
        assert "given:" not in shown
        assert shown.count('class="language-') >= len(blocks(page)), f"{page.name}: a fence is not rendered as code"
