"""DESIGN.md is about this code: what it names is there, and every package is on its map."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from tests.support.defined_names import defined
from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

PACKAGE = ROOT / "src" / "fencepost"
TEXT = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.(?:py|pyx|pxi))(?::([\w.]+))?`", TEXT)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_is_named_exists(file: str, name: str) -> None:
    path = PACKAGE / file
    assert path.exists(), f"DESIGN.md names {file}"
    assert not name or name in defined(path), f"DESIGN.md names {name} of {file}"


def test_the_way_of_a_record_is_told_by_function() -> None:
    assert sum(1 for _, name in NAMED if name) > 40


def test_every_package_is_on_the_map() -> None:
    packages = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"^(\w+)/", TEXT, re.MULTILINE))


PACKAGES = sorted(
    {str(file.parent.relative_to(PACKAGE)) for file in PACKAGE.rglob("__init__.py")}
    - {".", "cli", "kernel", "server/api"}
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_each_of_its_modules_is_for(package: str) -> None:
    folder = PACKAGE / package
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert modules <= set(re.findall(r"\w+", said))
    assert {
        name for name in re.findall(r"(?<![\w/])(\w+)\.py\b", said) if not (folder / f"{name}.py").exists()
    } == set()


def test_the_layers_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    told = re.search(r"import-linter: (.+?)\. ", TEXT.replace("\n", " "))
    assert told is not None
    assert [each.strip() for each in told[1].split("→")] == [each.replace("fencepost.", "") for each in layers]
