"""A tool that runs the smoke tests with each version of PySpark, in separate virtual environments, and prints a table.

    python -m tools.matrix [VERSION …] [--work .work/matrix]

For each version fencepost's wheel and that PySpark are installed from the package index that pip is configured for, and
`tests/spark/test_platform.py` is run there. The table is written into docs/spark.md, between the two marks, after each
version; a version that was not run yet keeps the column of its last run here. A version that cannot be installed, or
does not start here, has a column that says so. Environments are kept and used again.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from tools.section import ROOT, Section

TESTS = ROOT / "tests/spark/test_platform.py"
SECTION = Section(ROOT / "docs" / "spark.md", "<!-- made by `make matrix` -->", "<!-- end -->")
VERSIONS = ("3.5.*", "4.0.*", "4.1.*", "4.2.*", "4.3.*")
BESIDE = (
    "pyyaml>=5",
    "hypothesis>=6.100",
    "pandas>=2.2,<3",
    "confluent-kafka>=2.6",
    "psutil>=6",
    "pytest>=8",
    "pytest-timeout>=2.3",
)
PASSED, SKIPPED, FAILED = "yes", "–", "**no**"


@dataclass
class Column:
    """One version of PySpark. `results`: test → outcome; empty if it could not be tested, for the reason in `why`."""

    asked: str
    version: str = ""
    results: dict[str, str] = field(default_factory=dict)
    why: str = ""


def run(*command: str | Path, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # the wheel is tried, not a tree
    done = subprocess.run(
        [str(word) for word in command], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    if not quiet and done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return done


def wheel(work: Path) -> Path:
    """Build the wheel that users get, once."""
    folder = work / "wheel"
    for old in folder.glob("*.whl"):
        old.unlink()
    done = run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    if done.returncode:
        sys.exit("the wheel could not be built")
    (built,) = folder.glob("*.whl")
    return built


def tried(asked: str, work: Path, built: Path) -> Column:
    column = Column(asked)
    home = work / asked.removesuffix(".*")
    python = home / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", home)
    pip: list[str | Path] = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    connect = "" if asked.startswith("3.") else "[connect]"  # with 3.5 it asks for a NumPy that Arrow is too new for
    installed = run(*pip, f"pyspark{connect}=={asked}", f"{built}[arrow]", *BESIDE)
    if installed.returncode == 0:  # the same number, perhaps newer content
        installed = run(*pip, "--force-reinstall", "--no-deps", built)
    if installed.returncode:
        column.why = "could not be installed: " + (installed.stderr.strip().splitlines() or ["?"])[-1]
        return column
    column.version = run(python, "-c", "import pyspark; print(pyspark.__version__)").stdout.strip()
    report = work / f"{column.version}.xml"
    report.unlink(missing_ok=True)
    run(python, "-m", "pytest", TESTS, "-q", f"--junitxml={report}")
    if not report.exists():
        column.why = "the tests did not start"
        return column
    column.results = outcomes(report)
    return column


def outcomes(report: Path) -> dict[str, str]:
    """Return test → outcome. Of a test with parameters the worst outcome counts."""
    results: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has written it
        test = str(case.get("name")).partition("[")[0]
        bad = case.find("failure") is not None or case.find("error") is not None
        found = FAILED if bad else SKIPPED if case.find("skipped") is not None else PASSED
        results[test] = FAILED if FAILED in (found, results.get(test)) else found
    return results


def kept(asked: str, work: Path) -> Column | None:
    """Return the column of a version's last run, if its report is still there."""
    reports = sorted(work.glob(f"{asked}.xml"), key=lambda report: report.stat().st_mtime)
    return Column(asked, reports[-1].stem, outcomes(reports[-1])) if reports else None


def minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def titles() -> dict[str, str]:
    """Return test → the first line of its docstring, in the file's order."""
    tree = ast.parse(TESTS.read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: (ast.get_docstring(node) or node.name).splitlines()[0] for node in functions}


def table(columns: list[Column]) -> str:
    head = ["", *(f"PySpark {column.version or column.asked.removesuffix('.*')}" for column in columns)]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for test, title in titles().items():
        lines.append(" | ".join([title, *(column.results.get(test, "not tried") for column in columns)]))
    java = run("java", "-version", quiet=True).stderr.splitlines()
    below = [f"Python {platform.python_version()}, {java[0] if java else 'no Java'}."]
    below += [f"PySpark {column.asked}: {column.why}." for column in columns if column.why]
    return "\n".join([*(f"| {line} |" for line in lines), "", *below])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="as pip writes them: 4.2.1, 4.2.*")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "matrix")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    built = wheel(arguments.work)
    earlier = ((version, kept(version, arguments.work)) for version in VERSIONS)
    columns = {minor(version): column for version, column in earlier if column is not None}
    for version in arguments.versions:
        print(f"PySpark {version} …", flush=True)
        column = columns[minor(version)] = tried(version, arguments.work, built)
        print(column.why or f"  {column.version}: {column.results}", flush=True)
        SECTION.write(table([columns[each] for each in sorted(columns)]))
    if any(FAILED in column.results.values() for column in columns.values()):
        sys.exit("some failed: see the table")


if __name__ == "__main__":
    main()
