"""What `make dist` builds, installed where there is nothing else: it works, and says so where it is slow. `make smoke`
runs this alone, with all Pythons that are found.

pip fetches the dependencies as it does for `make setup`.
"""

from __future__ import annotations

import email
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from tests.support.browser import MISSING, Visitor, find_chromium, open_browser
from tests.support.make_runs import without_tool
from tests.support.pages import blocks, commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
"""It compiles, and installs from a package index."""

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "tests" / "workers" / "smoke.py"
README = ROOT / "README.md"
TYPED = ROOT / "tests" / "workers" / "typed_program.py"
TYPED_EXAMPLES = ["workers.py", "exactly_once_worker.py", "exclusive_readers.py"]
OTHERS = [version for version in ("3.11", "3.12", "3.13", "3.14") if version != f"3.{sys.version_info.minor}"]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def clean() -> dict[str, str]:
    """The environment without what is ours."""
    ours = ("PYTHON", "FENCEPOST", "MAKE", "MFLAGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Its output; fails with everything it said."""
    done = subprocess.run(command, cwd=cwd, env={**clean(), **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clone(folder: Path) -> Path:
    """Copy what is under version control, without any left-over of this checkout: what a user has cloned."""
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).rstrip("\0").split("\0"):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def test_the_extra_spark_has_what_connect_and_pipelines_need() -> None:
    """PySpark says which packages these are, for its own extras."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (pyspark,) = (Requirement(each) for each in extras["spark"] if each.startswith("pyspark"))
    needed = {
        Requirement(each).name
        for each in importlib.metadata.requires("pyspark") or ()
        if any(
            (Requirement(each).marker or Marker("extra == ''")).evaluate({"extra": extra}) for extra in pyspark.extras
        )
    }
    assert {"grpcio", "grpcio-status", "googleapis-common-protos", "pyyaml"} <= needed


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive and the wheel of `make dist`."""
    folder = clone(tmp_path_factory.mktemp("clone"))
    run("make", "dist", f"PYTHON={sys.executable}", cwd=folder)
    assert not (folder / ".venv").exists(), "it needs a compiler and the build requirements, nothing else"
    (sdist,), (wheel,) = (list(folder.glob(f"dist/*{suffix}")) for suffix in (".tar.gz", ".whl"))
    return sdist, wheel


def environment_with(python: str, what: Path, folder: Path) -> Path:
    """An empty virtual environment with it, and with what it needs; its Python."""
    run(python, "-m", "venv", str(folder / "venv"), cwd=folder)
    inside = folder / "venv" / "bin" / "python"
    run(inside, *PIP, "install", str(what), cwd=folder)
    return inside


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and with nothing but what it needs."""
    return environment_with(sys.executable, archives[1], tmp_path_factory.mktemp("installed"))


def smoke(python: Path, folder: Path, **environment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(python, str(SMOKE), cwd=folder, **environment))
    print(found)
    assert found["numbers"]
    assert (found["offset"], found["values"]) == (0, ["key=value"])
    assert found["token"] > 0
    assert not Path(found["where"]).is_relative_to(ROOT), "it must be the installed one"
    return found


@pytest.mark.long
def test_the_archives_hold_what_they_should(archives: tuple[Path, Path]) -> None:
    sdist, wheel = archives
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py", "src/fencepost/kernel/_batch.pyx"} <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyc"))]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {"fencepost/py.typed", "fencepost/kernel/_batch.pyi", "fencepost/demo/story.py"} <= names
    assert [name for name in names if name.startswith("fencepost/kernel/_batch.") and name.endswith(".so")]
    console = {name.removeprefix("fencepost/server/http/console/") for name in names if "/console/" in name}
    assert {"static/console.css", "templates/layout.html"} <= console
    assert {"vendor/htmx.min.js", "vendor/htmx.org.LICENSE", "vendor/uplot.min.js", "vendor/uplot.LICENSE"} <= console
    ours = ("fencepost", "pyspark_fencepost", names_dist_info(names))
    assert not [name for name in names if name.split("/")[0] not in ours]
    header = email.message_from_string(metadata)
    assert header["License-Expression"] == "Apache-2.0"
    assert header["Requires-Python"] == ">=3.11"
    assert set(header.get_all("Provides-Extra") or ()) == {"arrow", "spark", "demo", "oauth", "all"}
    assert "Typing :: Typed" in (header.get_all("Classifier") or ())


def names_dist_info(names: set[str]) -> str:
    return next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))


@pytest.mark.long
def test_the_wheel_works_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    found = smoke(installed, tmp_path)
    assert found["kernel"] == "cython"
    assert found["warnings"] == []


@pytest.mark.long
def test_the_quick_start_works_word_for_word_without_npm_and_compiler(tmp_path: Path) -> None:
    """The README's commands in a clone and an empty environment; then its Python, and its console in a browser."""
    tools, python = tmp_path / "tools", tmp_path / "venv" / "bin" / "python"
    tools.mkdir()
    for tool in ("bash", "seq"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), cwd=tmp_path)
    at = clone(tmp_path / "clone")
    install, serve, produce, consume = commands(next(each for each in blocks(README) if each.language == "sh"))
    (program,) = (each.text for each in blocks(README) if "fencepost.Reader(" in each.text)
    environment = {"PATH": f"{python.parent}:{tools}", "CC": "false", "CXX": "false"}
    run("bash", "-c", install, cwd=at, **environment)
    with served(serve, at, {**clean(), **environment, **ANY_PORTS}) as (address, console):
        environment["FENCEPOST_SERVERS"] = address
        run("bash", "-c", produce, cwd=tmp_path, **environment)
        assert run("bash", "-c", consume, cwd=tmp_path, **environment) == run("seq", "1000", cwd=tmp_path)
        said = run(python, "-c", program.replace("127.0.0.1:9092", address), cwd=tmp_path, PYTHONWARNINGS="ignore")
        assert said == "[b'one apple']\n"
        look_at_the_console(console)
    found = smoke(python, tmp_path)
    assert found["kernel"] == "python"
    (warning,) = found["warnings"]
    assert "compiled kernel is missing" in warning
    assert "Reinstall fencepost where a C compiler is available" in warning


ANY_PORTS = {"FENCEPOST_LISTEN": "127.0.0.1:0", "FENCEPOST_HTTP_ADDRESS": "127.0.0.1:0"}


@contextmanager
def served(command: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The addresses that the server announces, of Kafka's protocol and of the console."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            first, _, last = (server.stdout.readline() for _ in range(3))
            yield (
                first.partition(" listening on ")[2].strip(),
                last.partition("console, health and metrics on ")[2].strip(),
            )
        finally:
            server.terminate()


def look_at_the_console(url: str) -> None:
    """Open it in a browser, and wait until its scripts have drawn the live page."""
    chromium = find_chromium()
    if chromium is None:
        without_tool(MISSING)
        raise AssertionError
    with open_browser(chromium) as browser:
        visitor = Visitor(browser, url)
        page = visitor.go("/topics")
        visitor.wait_until_live()
        page.get_by_role("link", name="numbers").wait_for()
        visitor.close()
        assert visitor.complaints == []


MISTYPED = """
import fencepost
import fencepost.spark
from fencepost import Consumer  # wrong
from fencepost.spark import Snik  # wrong
fencepost.Prodcuer("127.0.0.1:9092")  # wrong
fencepost.spark.Copyy  # wrong
with fencepost.Producer("127.0.0.1:9092", compression="lz5") as producer:  # wrong
    producer.send_offsets("group", {fencepost.TopicPartition("topic", 0): 1})
    producer.send_offsets("group", {fencepost.TopicPartition("topic", 0): "1"})  # wrong
    producer.send("topic", b"value", timestamp=1.5)  # wrong
with fencepost.Reader("127.0.0.1:9092", "topic", strat="latest") as reader:  # wrong
    pass
fencepost.hold("127.0.0.1:9092", "group", ["resource"], sesion=5)  # wrong
fencepost.standby("127.0.0.1:9092", "group", ["resource"], lingr=5)  # wrong
fencepost.AsyncReader("127.0.0.1:9092", "topic", strat="latest")  # wrong
fencepost.Admin("127.0.0.1:9092", client_id="me")  # wrong
"""
TYPE_CHECKERS = {
    "mypy": ["-m", "mypy", "--strict", "--cache-dir=.cache", "--python-executable"],
    "pyright": ["-m", "pyright", "--project", "pyrightconfig.json", "--pythonpath"],
}


@pytest.mark.long
@pytest.mark.parametrize("checker", TYPE_CHECKERS)
def test_type_checkers_accept_a_users_program_and_reject_wrong_names(
    checker: str, installed: Path, tmp_path: Path
) -> None:
    """Both in their strict mode, and against the wheel alone, as a user's editor sees it."""
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    right = ["right.py", *TYPED_EXAMPLES]
    shutil.copy(TYPED, tmp_path / "right.py")
    for name in TYPED_EXAMPLES:
        shutil.copy(ROOT / "examples" / name, tmp_path)
    (tmp_path / "wrong.py").write_text(MISTYPED, encoding="utf-8")
    command = [sys.executable, *TYPE_CHECKERS[checker], str(installed)]
    # pyright would ask the package index whether there is a newer one.
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}

    def check(*programs: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *programs], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    accepted, rejected = check(*right), check("wrong.py")
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    found = {int(line) for line in re.findall(r"wrong\.py:(\d+)(?::\d+)?(?: -|:) error", rejected.stdout)}
    marked = {number for number, line in enumerate(MISTYPED.splitlines(), 1) if line.endswith("# wrong")}
    assert found == marked, rejected.stdout + rejected.stderr


@pytest.mark.soak
@pytest.mark.parametrize("version", OTHERS)
def test_it_works_with_other_pythons(version: str, archives: tuple[Path, Path], tmp_path: Path) -> None:
    """Where they are installed; built by pip as a user's would be, in isolation."""
    python = find(version)
    if python is None:
        pytest.skip(f"not tried: there is no Python {version} here")
    found = smoke(environment_with(python, archives[0], tmp_path), tmp_path)
    assert found["kernel"] == "cython"
    assert found["python"].startswith(version)


def find(version: str) -> str | None:
    """On the path, or among pyenv's, whose stand-ins on the path answer only for the chosen version."""
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(
        map(str, Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    )
    for python in candidates:
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None
