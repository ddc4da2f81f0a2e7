"""README.md and docs/ hold together: code that is run, links that lead somewhere, commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import EXECUTED, LANGUAGES, PAGES, ROOT, Block, blocks

pytestmark = pytest.mark.unit

BLOCKS = [block for page in PAGES for block in blocks(page)]
_PROGRAM = re.compile(r"^(\$ |make |pip |python |import |from \w+ import|fencepost |with fencepost)", re.MULTILINE)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_code_block_is_executed_or_says_why_not(block: Block) -> None:
    what_to_do = (
        f"{block}: a fence names its language. {', '.join(sorted(EXECUTED))} are executed by test_docs.py in "
        "tests/integration and tests/spark (see tests/support/pages.py), or carry `<!-- not run: why -->` in front; "
        f"{', '.join(sorted(LANGUAGES - EXECUTED))} are no code"
    )
    assert block.language in LANGUAGES, what_to_do
    assert block.language in EXECUTED or not _PROGRAM.search(block.text), what_to_do


def test_few_blocks_are_not_executed() -> None:
    code = [block for block in BLOCKS if block.language in EXECUTED]
    left_out = [str(block) for block in code if block.not_run]
    assert len(left_out) * 5 <= len(code), left_out


@every_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        if anchor in ("only-light", "only-dark"):  # the theme in which a picture is shown
            anchor = ""
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{page.name} links to {target}"


def _anchor(heading: str) -> str:
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


@every_page
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets


def _is_path(word: str) -> bool:
    return re.fullmatch(r"(tests|src|bench|examples|tools|docs)/[\w./-]+", word) is not None


@pytest.mark.parametrize("page", [*PAGES, ROOT / "DESIGN.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = filter(_is_path, re.findall(r"`([^`\s]+)`", page.read_text(encoding="utf-8")))
    assert [name for name in named if not (ROOT / name).exists()] == []
