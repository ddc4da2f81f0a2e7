"""Conventions of the test tree, so that a test is easy to find and its name easy to read."""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

TESTS: Final = ROOT / "tests"
LONGEST_NAME: Final = 79


def test_test_names_are_shorter_than_80_characters() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name.startswith("test_") and len(node.name) > LONGEST_NAME
    ]
    assert not too_long
