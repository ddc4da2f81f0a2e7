"""docs/troubleshooting.md has every error: each class that is raised on purpose, each code that the server answers."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode, FencepostError
from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \|", PAGE, re.MULTILINE)


def _classes(root: type[FencepostError]) -> Iterator[type[FencepostError]]:
    for each in root.__subclasses__():
        yield each
        yield from _classes(each)


def _public_errors() -> set[str]:
    for module in pkgutil.walk_packages(fencepost.__path__, "fencepost."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return {each.__name__ for each in _classes(FencepostError) if not each.__name__.startswith("_")}


def _answered() -> set[str]:
    """The codes that occur in what the server is made of."""
    package = Path(fencepost.__file__).parent
    codes = {each.code.name for each in _classes(FencepostError)}
    for folder in ("server", "core", "log", "kernel"):
        for file in (package / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == "ErrorCode"
                ):
                    codes.add(node.attr)
    return codes & set(ErrorCode.__members__) - {"NONE"}


def test_every_error_class_has_its_line() -> None:
    missing = [name for name in sorted(_public_errors()) if f"`{name}`" not in ROWS]
    assert not missing, "docs/troubleshooting.md: what causes each of these, and what is the way out?"


def test_every_code_that_the_server_answers_has_its_line() -> None:
    missing = [name for name in sorted(_answered()) if name not in ROWS]
    assert not missing, "docs/troubleshooting.md: why does the server answer these, and what is the way out?"


def test_the_page_names_nothing_that_does_not_exist() -> None:
    codes = {row for row in ROWS if re.fullmatch(r"[A-Z_]+", row)}
    classes = {row.strip("`") for row in ROWS if re.fullmatch(r"`[A-Z]\w+`", row)}
    assert codes <= set(ErrorCode.__members__)
    assert classes <= _public_errors()
