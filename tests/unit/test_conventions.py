"""Conventions of the test tree, so that a test is easy to find and its name easy to read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


READ_BY_OTHERS: Final = {
    "asyncio": {"eof_received"},
    "click": {"format_commands", "format_usage", "list_commands"},
    "enum": {"_value_"},
    "logging": {"emit"},
    "programs, as JSON": {"counted_by", "sensitive"},
    "PySpark": {
        "getDefaultReadLimit", "latestOffset", "prepareForTriggerAvailableNow", "reportLatestOffset", "streamReader",
        "streamWriter",
    },
    "re2": {"log_errors", "max_mem", "never_capture"},
    "ssl": {"minimum_version", "num_tickets", "sni_callback", "verify_mode"},
    "tarfile": {"mtime"},
    "tuples, when they are compared": {"last_fetched_epoch", "mtime_ns"},
    "users": {"Recorder", "broker_configs", "current_generation", "fatal"},
    "uvicorn": {"capture_signals", "main_loop", "should_exit", "startup"},
}  # fmt: skip
"""Names that no line of ours reads."""
READ_BY_TESTS: Final = {"MAX_SEQUENCE", "cut_bytes"}
"""The edge of the arithmetic, and what a recovery has cut off: nothing else shows it."""
FUNCTION: Final = ast.FunctionDef | ast.AsyncFunctionDef
PLAIN: Final = {"property", "staticmethod", "classmethod", "cached_property", "cache", "contextmanager", "override"}
"""Decorators that make no function known to somebody else, as those of commands and fixtures do."""


def read_words(tree: ast.Module, *, is_public: bool) -> Iterator[str]:
    """Yield the names that the module reads, and the words of its texts. A docstring reads nothing, nor does an import,
    unless it makes the names of a package known."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | FUNCTION)]
    documents = {id(each.value) for block in blocks for each in block.body if isinstance(each, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield from re.findall(r"\w+", node.value)
        elif is_public and isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield functions, classes, attributes and variables of modules and classes, with their lines. The values of an
    enum are those of the protocol, whether somebody names them or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, FUNCTION) and {ast.unparse(each) for each in node.decorator_list} <= PLAIN
        ):
            yield node.name, node.lineno
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        if isinstance(node, ast.Module) or (
            isinstance(node, ast.ClassDef) and not any("Enum" in ast.unparse(base) for base in node.bases)
        ):
            for each in node.body:
                targets = [each.target] if isinstance(each, ast.AnnAssign) else getattr(each, "targets", [])
                yield from ((target.id, each.lineno) for target in targets if isinstance(target, ast.Name))


def test_every_name_is_read_outside_of_tests() -> None:
    """By the package, its templates and compiled parts. A name that something alive shares is not noticed."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    read = {word for path, tree in trees.items() for word in read_words(tree, is_public=path.name == "__init__.py")}
    for path in SOURCE.rglob("*"):
        if path.suffix in (".pyx", ".pxi", ".html", ".js"):
            read.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    known = READ_BY_TESTS.union(*READ_BY_OTHERS.values())
    unread: dict[str, str] = {}
    for path, tree in trees.items():
        if path != SOURCE / "wire" / "own.py":  # its messages are found by their names
            for name, line in defined_names(tree):
                if name not in read and not name.startswith("__"):
                    unread[name] = f"{path.relative_to(ROOT)}:{line}: {name}"
    assert sorted(place for name, place in unread.items() if name not in known) == []
    assert known <= unread.keys(), "names that are gone, or are read now"
