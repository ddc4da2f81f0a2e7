"""docs/requirements.md is complete: every number that is cited is defined there, with code and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.defined_names import defined
from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

PAGE: Final = ROOT / "docs" / "requirements.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
PACKAGE: Final = ROOT / "src" / "fencepost"

OURS, KAFKA, BOTH, NEITHER = "our server", "Apache Kafka", "both", "no server"
NOT_ALIKE: Final = "both, not alike"
"""Of a point: on both, with a difference that its section names."""
_REACH: Final = {OURS: {OURS}, KAFKA: {KAFKA}, BOTH: {OURS, KAFKA}, NEITHER: set[str]()}
_CITED: Final = re.compile(r"\b(OWN|IDEM|PROD|PIPE)-(\d+)(?: to (?:\1-)(\d+))?")
_TEST: Final = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?` \(([^)]*)\)")
_CODE: Final = re.compile(r"`((?!tests/)[\w/]+\.(?:py|pyx|pxi))(?::([\w.]+))?`")
_ON_KAFKA: Final = re.compile(
    r"mark\.kafka\b|\b(?:server: TestedServer|client: RawClient|servers: str|engine: Engine|kafka: \w+)\b"
)
"""What a file has in it of which a test runs on Apache Kafka: the mark, or a fixture of both engines."""


class Shown(NamedTuple):
    file: str
    test: str
    engine: str


class Row(NamedTuple):
    point: str
    anchor: str
    short: str
    engine: str
    status: str


def cited(text: str) -> set[str]:
    """The numbers in a text; "OWN-3 to OWN-5" are three."""
    found: set[str] = set()
    for family, first, last in _CITED.findall(text):
        found |= {f"{family}-{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def _sources() -> Iterator[Path]:
    for folder in ("src", "tests", "docs", "bench", "examples", "tools"):
        for suffix in ("py", "pyx", "pxi", "md"):
            yield from (ROOT / folder).rglob(f"*.{suffix}")
    yield from ROOT.glob("*.md")


def _line(point: str, label: str) -> str:
    lines = re.findall(rf"^- {label}: (.+)$", SECTIONS[point], re.MULTILINE)
    return lines[0] if lines else ""


def _shown(point: str) -> list[Shown]:
    return [Shown(*found) for found in _TEST.findall(_line(point, "Tests"))]


ROWS: Final = [
    Row(*cells)
    for cells in re.findall(
        r"^\| \[([A-Z]+-\d+)\]\(#([\w-]+)\) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE
    )
]
SECTIONS: Final[dict[str, str]] = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
POINTS: Final = list(SECTIONS)
every_point = pytest.mark.parametrize("point", POINTS)


def test_every_number_that_is_cited_is_defined() -> None:
    undefined = {
        str(file.relative_to(ROOT)): sorted(missing)
        for file in _sources()
        if file != PAGE and (missing := cited(file.read_text(encoding="utf-8")) - set(POINTS))
    }
    assert undefined == {}


def test_the_table_and_the_sections_have_the_same_points_in_the_same_order() -> None:
    assert [row.point for row in ROWS] == POINTS
    assert [row.anchor for row in ROWS] == [point.lower() for point in POINTS]


@pytest.mark.parametrize(("family", "last"), [("OWN", 10), ("IDEM", 7), ("PROD", 11), ("PIPE", 5)])
def test_numbers_are_counted_through(family: str, last: int) -> None:
    assert [point for point in POINTS if point.startswith(f"{family}-")] == [
        f"{family}-{number}" for number in range(1, last + 1)
    ]


@every_point
def test_a_point_is_said_in_words(point: str) -> None:
    said = SECTIONS[point].strip().split("\n- ")[0]
    assert len(said) > 40, said


@every_point
def test_a_point_has_code(point: str) -> None:
    assert any(name for _, name in _CODE.findall(_line(point, "Code"))), f"{point} names no code as `path:Name`"


@pytest.mark.parametrize(("file", "name"), sorted(set(_CODE.findall(TEXT))))
def test_code_that_is_named_exists(file: str, name: str) -> None:
    path = PACKAGE / file
    assert path.exists(), f"docs/requirements.md names {file}"
    assert not name or name in defined(path), f"docs/requirements.md names {name} of {file}"


@every_point
def test_a_point_has_tests_that_exist_and_cite_it_or_are_named(point: str) -> None:
    line = _line(point, "Tests")
    shown = _shown(point)
    assert shown, f"{point} names no test"
    assert line.count("`tests/") == len(shown), f"{point}: a test without its engine"
    for each in shown:
        file = ROOT / each.file
        assert file.exists(), f"{point} names {each.file}"
        text = file.read_text(encoding="utf-8")
        if each.test:
            assert re.search(rf"def {each.test}\(", text), f"{each.file} has no {each.test}"
        else:
            assert point in cited(text), f"{each.file} does not cite {point}: cite it, or name the test with ::"


@every_point
def test_the_engine_of_a_test_is_known_and_fits_the_file(point: str) -> None:
    for each in _shown(point):
        assert each.engine in _REACH, f"{point}, {each.file}: engines are {', '.join(_REACH)}"
        if each.file.startswith(("tests/unit/", "tests/model/")):
            assert each.engine == NEITHER, f"{each.file} has no server"
        else:
            assert each.engine != NEITHER, f"{each.file} has a server"
        if KAFKA in _REACH[each.engine]:
            assert _ON_KAFKA.search((ROOT / each.file).read_text(encoding="utf-8")), f"{each.file}: not on Kafka"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.point)
def test_the_engine_of_a_point_is_where_its_tests_run_and_a_difference_is_said(row: Row) -> None:
    reach = set().union(*(_REACH[each.engine] for each in _shown(row.point)))
    engine = BOTH if row.engine == NOT_ALIKE else row.engine
    assert _REACH[engine] == reach, f"{row.point} is tested on {sorted(reach) or NEITHER}"
    words = SECTIONS[row.point]
    if row.engine == NOT_ALIKE:
        assert _line(row.point, "On Apache Kafka"), f"{row.point}: what is not alike?"
    elif len(reach) == 1:
        (other,) = {OURS, KAFKA} - reach
        assert other in words, f"{row.point}: what about {other}?"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.point)
def test_no_point_holds_only_half(row: Row) -> None:
    assert row.status == "holds"


def test_the_choices_are_said() -> None:
    assert sum(bool(_line(point, "Choice")) for point in POINTS) == len(POINTS)


def test_a_row_of_numbers_is_read_as_all_of_them() -> None:
    assert cited("OWN-3 to OWN-5, PROD-1; IDEM-2 to PROD-9") == {
        "OWN-3",
        "OWN-4",
        "OWN-5",
        "PROD-1",
        "IDEM-2",
        "PROD-9",
    }
