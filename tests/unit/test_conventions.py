"""Conventions of the test tree, so that a test is easy to find and its name easy to read."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

TESTS: Final = ROOT / "tests"
LONGEST_NAME: Final = 79


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_test_names_are_shorter_than_80_characters() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > LONGEST_NAME
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
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in _tree(path).body)


def test_scripts_that_tests_start_lie_in_workers() -> None:
    places = (TESTS / "workers", TESTS / "fuzz")
    assert not [str(path) for path in TESTS.rglob("*.py") if path.parent not in places and _is_script(path)]
