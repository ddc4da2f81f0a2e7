"""What all tests share: the count of kinds, names of their own, and the real Apache Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import itertools
import os
import pkgutil
import re
import signal
import uuid
import warnings
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

import fencepost.server
from tests.support import access_matrix, attacks, kind_counts, make_runs, progress, suite_time
from tests.support.kafka import KafkaUnavailable, jars, shared_broker
from tests.support.make_runs import without_tool

settings.register_profile("untimed", deadline=None)  # a loaded machine is no failure
settings.load_profile("untimed")

_numbers = itertools.count(1)
_PROCESS = uuid.uuid4().hex[:6]  # workers of xdist share the real Kafka


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fencepost")
    group.addoption("--floors", metavar="RUN", help="fail if fewer tests ran than tests/floors.toml demands")
    group.addoption("--progress", action="store_true", help="lines that say what runs and what is left, no dots")
    group.addoption("--share-spark", action="store_true", help="give the tests of Spark to two workers of xdist only")
    group.addoption("--long-attacks", action="store_true", help="attack in full and demand short waits (make hostile)")
    group.addoption("--access-matrix", action="store_true", help="print who may do what on both servers (make access)")
    group.addoption(
        "--compat-on-kafka",
        action="store_true",
        help="run the compat tests against Apache Kafka, to see whether a failure is ours or the client's",
    )


GARBAGE = 20_000
"""New objects between two sweeps of the garbage collector. With Python's 700 it takes a quarter of the unit tests' CPU
time, because pytest and the tests keep so much alive."""


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: nothing that they consist of is garbage
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what it runs in the background so, and every process of the tests would inherit it: those that
        # are to end at Ctrl-C would never end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # a worker of xdist reports to the controller, which counts for all
        run = config.getoption("floors")
        floors = kind_counts.read_floors(run) if run else {}
        config.pluginmanager.register(kind_counts.Counts(floors), "fencepost-counts")
        config.pluginmanager.register(attacks.Table(), "fencepost-attacks")
        config.pluginmanager.register(access_matrix.Table(), "fencepost-access")
        config.pluginmanager.register(suite_time.Seconds(), "fencepost-seconds")
        if config.getoption("progress"):
            config.pluginmanager.register(progress.Progress(config), "fencepost-progress")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> suite_time.Shares | None:
    return suite_time.Shares(config, log) if config.getoption("share_spark") else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    make_runs.mark_long(items, whole=config.args_source is pytest.Config.ArgsSource.TESTPATHS)
    kind_counts.label(items)
    suite_time.arrange(items)
    if any(item.get_closest_marker(kind) for item in items for kind in ("integration", "browser", "fault")):
        _load_server()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the million objects that are there before the first test: each sweep of the
    hundreds that tests ask for would take a quarter of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()


def _load_server() -> None:
    """Load what servers in this process would load later, in threads of theirs. pytest rewrites what is imported, and
    CPython 3.11 and 3.12 cannot build two syntax trees at the same time: "AST constructor recursion depth mismatch"."""
    for module in pkgutil.walk_packages(fencepost.server.__path__, "fencepost.server."):
        importlib.import_module(module.name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    suite_time.begin(item)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """py4j leaves the sockets of threads that have ended to the garbage collector, whose complaint would hit whichever
    test happens to come next: they are swept up behind each test of Spark's."""
    yield
    if item.get_closest_marker("spark") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    suite_time.end(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own. What its fixtures return is entered there if it
    is an asynchronous context manager."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            given = {}
            for name in pyfuncitem._fixtureinfo.argnames:
                value: Any = pyfuncitem.funcargs[name]
                is_entered = isinstance(value, contextlib.AbstractAsyncContextManager)
                given[name] = await stack.enter_async_context(value) if is_entered else value
            await pyfuncitem.obj(**given)

    asyncio.run(run())
    return True


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test of the session uses, for topics, groups and sinks."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.originalname.removeprefix("test_"))[:60]
    return f"{test}-{_PROCESS}-{next(_numbers)}"


class Kafka(NamedTuple):
    """A running Apache Kafka."""

    address: str


def _shared_kafka(
    tmp_path_factory: pytest.TempPathFactory, name: str, settings: Mapping[str, object]
) -> Iterator[Kafka | str]:
    # Workers of xdist have folders of their own inside one that they share. They share the broker too.
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(shared_broker(folder, settings))
        except KafkaUnavailable as error:
            # Handed on instead of raised, so that the next test does not try to start the broker again.
            yield str(error)
        else:
            yield Kafka(address)


@pytest.fixture(scope="session")
def _kafka_or_reason(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka | str]:
    yield from _shared_kafka(tmp_path_factory, "kafka", {})


@pytest.fixture(scope="session")
def _short_sessions_or_reason(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka | str]:
    settings = {"group.min.session.timeout.ms": 100}
    yield from _shared_kafka(tmp_path_factory, "kafka-with-short-sessions", settings)


@pytest.fixture
def kafka(_kafka_or_reason: Kafka | str) -> Kafka:
    """The session's Apache Kafka. Tests share it, also those that run at the same time: use names of your own."""
    return _running(_kafka_or_reason)


@pytest.fixture
def kafka_with_short_sessions(_short_sessions_or_reason: Kafka | str) -> Kafka:
    """Another one, which takes sessions below six seconds: for tests that have to wait for their end."""
    return _running(_short_sessions_or_reason)


def _running(kafka_or_reason: Kafka | str) -> Kafka:
    if isinstance(kafka_or_reason, str):
        without_tool(kafka_or_reason)
    assert isinstance(kafka_or_reason, Kafka)
    return kafka_or_reason


class Engine(NamedTuple):
    """A server of either kind, for tests of what both do."""

    address: str
    is_kafka: bool

    def guarded_by(self, group: str, who: str = "writer") -> dict[str, str]:
        """The configs of a topic that is guarded where topics can be."""
        return {} if self.is_kafka else {f"fencepost.{who}.group": group}


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each in turn; only the one that is asked for is started. On Kafka, sessions may be as short as on our server."""
    if request.param == "kafka":
        return Engine(request.getfixturevalue("kafka_with_short_sessions").address, is_kafka=True)
    return Engine(request.getfixturevalue("fencepost_server").address, is_kafka=False)


@pytest.fixture
def kafka_jars() -> str:
    """The class path of Kafka's own clients and tools."""
    try:
        return f"{jars()}/*"
    except KafkaUnavailable as error:
        without_tool(str(error))
        raise
