"""The table of PySpark versions: a run of one version keeps what is known of the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import matrix
from tools.section import ROOT, Section

pytestmark = pytest.mark.unit

REPORT = """<testsuites><testsuite>
<testcase name="test_batch[driver]"/><testcase name="test_batch[tasks]">{}</testcase>
<testcase name="test_sink"/>
<testcase name="test_pipeline"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for number, version in enumerate(("4.1.3", "4.1.4", "4.10.0")):
        report = tmp_path / f"{version}.xml"
        report.write_text(REPORT.format("<failure/>" if version == "4.1.3" else ""))
        os.utime(report, (number, number))
    return tmp_path


def test_the_worst_outcome_of_a_tests_parameters_counts(work: Path) -> None:
    expected = {"test_batch": matrix.FAILED, "test_sink": matrix.PASSED, "test_pipeline": matrix.SKIPPED}
    assert matrix.outcomes(work / "4.1.3.xml") == expected


def test_the_last_run_of_a_version_is_kept_and_no_other_versions(work: Path) -> None:
    found = matrix.kept("4.1.*", work)
    assert found is not None
    assert (found.version, found.results["test_batch"]) == ("4.1.4", matrix.PASSED)
    assert matrix.kept("4.2.*", work) is None


def test_a_run_of_one_version_leaves_the_columns_of_the_others(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = work / "page.md"
    page.write_text("<begin><end>")
    monkeypatch.setattr(matrix, "SECTION", Section(page, "<begin>", "<end>"))
    monkeypatch.setattr(matrix, "wheel", lambda _work: ROOT)
    monkeypatch.setattr(
        matrix, "tried", lambda asked, _work, _built: matrix.Column(asked, "4.3.0", {"test_sink": "yes"})
    )
    monkeypatch.setattr("sys.argv", ["matrix", "4.3.*", "--work", str(work)])
    matrix.main()
    assert "|  | PySpark 4.1.4 | PySpark 4.3.0 |" in page.read_text()
