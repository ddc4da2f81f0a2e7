"""Conventions of the test tree, so that a test is easy to find and its name easy to read."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

SOURCE: Final = ROOT / "src" / "fencepost"
TESTS: Final = ROOT / "tests"
LONGEST_NAME: Final = 79


def test_test_names_are_shorter_than_80_characters() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if len(name) > LONGEST_NAME
    ]
    assert not too_long


def _names_in(folder: Path) -> set[str]:
    """Return the modules and packages of a source folder, and the folder itself, by the names that tests use."""
    found = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix in (".py", ".pyx")}
    return {name.removeprefix("_").removesuffix("_py") for name in found} | {folder.name}


def test_unit_tests_lie_where_their_module_lies() -> None:
    unit = TESTS / "unit"
    misplaced = []
    for path in unit.rglob("test_*.py"):
        place = path.parent.relative_to(unit)
        sources = [folder / place for folder in (ROOT / "src" / "fencepost", ROOT) if (folder / place).is_dir()]
        names = set[str]().union(*map(_names_in, sources))
        if path.parent not in (unit, unit / "docs") and not any(
            path.stem == f"test_{name}" or path.stem.startswith(f"test_{name}_") for name in names
        ):
            misplaced.append(str(path.relative_to(ROOT)))
    assert not misplaced


def _is_script(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return "__main__" in text and any(
        isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in ast.parse(text).body
    )


def test_scripts_that_tests_start_lie_in_workers() -> None:
    places = (TESTS / "workers", TESTS / "fuzz")
    assert not [str(path) for path in TESTS.rglob("*.py") if path.parent not in places and _is_script(path)]


CALLED_BY_OTHERS: Final = {
    "asyncio": {"eof_received"},
    "click": {"format_commands", "format_usage", "list_commands"},
    "logging": {"emit"},
    "PySpark": {
        "getDefaultReadLimit", "latestOffset", "prepareForTriggerAvailableNow", "reportLatestOffset", "streamReader",
        "streamWriter",
    },
    "users": {"broker_configs", "group_metadata"},
    "uvicorn": {"capture_signals", "main_loop", "startup"},
}  # fmt: skip
"""Names that no line of ours calls."""
SEEN_BY_TESTS: Final = {"waiting_for_memory"}
DEFINITION: Final = re.compile(
    r"^(?: *(?P<decorator>@[\w.]+|\)).*\n)?(?: *(?:async def|def|class) (?P<name>\w+)|(?P<constant>[A-Z_]\w+)\b.* = )",
    re.MULTILINE,
)
PLAIN: Final = {None, "@property", "@staticmethod", "@classmethod", "@dataclass", "@cache", "@contextmanager"}


def test_every_name_is_used_outside_of_tests() -> None:
    """By the package, its templates and compiled parts, or by a page for users."""
    places = [SOURCE.rglob(f"*.{ending}") for ending in ("py", "pyx", "pxi", "html", "js")] + [ROOT.glob("docs/*.md")]
    words: Counter[str] = Counter()
    defined: Counter[str] = Counter()
    elsewhere = (ROOT / "docs" / "requirements.md", SOURCE / "wire" / "own.py")  # messages are found by their names
    for path in (path for place in places for path in place if path not in elsewhere):
        text = path.read_text(encoding="utf-8")
        words.update(re.findall(r"\w+", text))
        if path.suffix == ".py":
            found = [each for each in DEFINITION.finditer(text) if each["decorator"] in PLAIN]
            defined.update(each["name"] or each["constant"] for each in found)
    known = SEEN_BY_TESTS.union(*CALLED_BY_OTHERS.values())
    unused = {name for name, times in defined.items() if words[name] <= times and not name.startswith(("__", "test_"))}
    assert sorted(unused - known) == []
    assert known <= defined.keys(), "names that are gone"
