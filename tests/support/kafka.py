"""A real Apache Kafka for tests: its jars by Maven, one KRaft broker on 127.0.0.1, stopped with the test session.

The jars are copied once into a cache folder (`FENCEPOST_TEST_CACHE`, or the user's cache directory), under a lock, so
that several test processes may ask at the same time. Needs `java` (17 or newer) on the PATH, and `mvn` the first time;
`KafkaUnavailable` says in one line what is not there.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from tests.support import class_archive
from tests.support.make_runs import without_tool
from tests.support.process import Child, free_port

VERSION: Final = "4.3.1"
HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 120

POM: Final = f"""<project>
<modelVersion>4.0.0</modelVersion>
<groupId>fencepost.tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
</dependencies>
</project>
"""

# A test broker does little: the client compiler alone and the serial collector start faster and leave the cores free.
JVM: Final = ["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]


class KafkaUnavailable(Exception):
    """Java, Maven or the jars are not to be had; the message is one clear line."""


class _Startable(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


StartableT = TypeVar("StartableT", bound=_Startable)


@contextlib.contextmanager
def running(broker: StartableT) -> Iterator[StartableT]:
    """Start a broker or a cluster, and stop it at the end. Without Java or Maven the test fails, or is skipped where a
    person has chosen that."""
    try:
        try:
            broker.start()
        except KafkaUnavailable as unavailable:
            without_tool(str(unavailable))
        yield broker
    finally:
        broker.stop()


def _require(*tools: str) -> None:
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        raise KafkaUnavailable(
            f"tests of the kind `kafka` need {' and '.join(absent)} on the PATH (Java 17 or newer, Maven 3.8 or newer)"
        )


def cache_folder() -> Path:
    given = os.environ.get("FENCEPOST_TEST_CACHE")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fencepost-tests"


def jars() -> Path:
    """The folder with Kafka's jars (broker, clients and tools), filled by Maven on first use."""
    cache = cache_folder()
    folder = cache / f"kafka-{VERSION}"
    if folder.is_dir():
        _require("java")
        return folder
    _require("java", "mvn")
    cache.mkdir(parents=True, exist_ok=True)
    with class_archive.locked(cache / "maven.lock"):
        if folder.is_dir():  # another process was faster
            return folder
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            Path(scratch, "pom.xml").write_text(POM)
            fresh = Path(scratch, "jars")
            maven = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
            done = subprocess.run(
                [*maven, f"-DoutputDirectory={fresh}"], cwd=scratch, capture_output=True, text=True, check=False
            )
            if done.returncode != 0 or not (fresh / f"kafka_2.13-{VERSION}.jar").exists():
                complaint = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr.strip())
                raise KafkaUnavailable(f"Maven could not fetch Apache Kafka {VERSION}: {complaint[:300]}")
            fresh.rename(folder)  # whole or not there at all
    return folder


def java(*arguments: str | Path, heap: str = "256m") -> list[str]:
    """A command line that runs one of Kafka's classes, or a Java source file, with Kafka on the class path."""
    quick = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
    return ["java", f"-Xmx{heap}", *quick, *archived_classes(), "-cp", f"{jars()}/*", *map(str, arguments)]


def archived_classes() -> list[str]:
    """Return the options of a JVM that takes Kafka's classes from an archive, which the first caller makes."""
    archive = class_archive.path(cache_folder(), f"kafka-{VERSION}", jars(), "java")
    class_archive.make(archive, _run_a_broker)
    return class_archive.options(archive)


def _run_a_broker(options: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder), archive=options)
        broker.start()
        broker.shut_down()


def answers(port: int) -> bool:
    """Is ApiVersions v0 answered without an error?"""
    body = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((HOST, port), 1) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.recv(10, socket.MSG_WAITALL)
            return len(answer) == 10 and struct.unpack(">iih", answer)[2] == 0
    except OSError:
        return False


@contextlib.contextmanager
def shared_broker(folder: Path, settings: Mapping[str, object] | None = None) -> Iterator[str]:
    """The address of a broker that all processes with this folder share, for as long as they need it.

    The first to come starts it, and stops it once nobody uses it any more; who comes later than that starts another.
    Two locks: `start.lock` is held while somebody looks, starts or stops, `users.lock` is shared by those who use the
    broker. Locks of a process that dies are gone with it, and so is its broker (see `process`).
    """
    note = folder / "address"
    broker: KafkaBroker | None = None
    with (folder / "users.lock").open("w") as users:
        with class_archive.locked(folder / "start.lock"):
            address = note.read_text() if note.exists() else ""
            if not address or not answers(int(address.rpartition(":")[2])):
                broker = KafkaBroker(folder / f"broker-{os.getpid()}", settings)
                broker.start()
                address = broker.address
                note.write_text(address)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield address
        finally:
            if broker is not None:
                fcntl.flock(users, fcntl.LOCK_UN)
                # The last test of this process is over, and waits here for those of others, each of which has a timeout
                # of its own: pytest-timeout must not take this wait for a test that hangs.
                signal.setitimer(signal.ITIMER_REAL, 0)
                with class_archive.locked(folder / "start.lock"):
                    fcntl.flock(users, fcntl.LOCK_EX)  # until the others are through
                    note.unlink()
                    broker.stop()


def new_cluster_id() -> str:
    # Its first byte is 0, and the text then begins with an A: a "-" in front would be taken for an option.
    return base64.urlsafe_b64encode(bytes(1) + uuid.uuid4().bytes[1:]).decode().rstrip("=")


class KafkaBroker:
    """One node that is broker and controller; `address` is where clients connect."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        jvm: Sequence[str] = JVM,
        protocols: Sequence[str] = (),
        scram: Sequence[str] = (),
        features: Mapping[str, int] | None = None,
        cluster_id: str | None = None,
        archive: Sequence[str] | None = None,
    ) -> None:
        """`protocols` are those of further listeners (SSL, SASL_SSL …), whose addresses are in `listening`; `scram` are
        users in the form that Kafka's storage tool takes; `features` are levels lower than its newest, as in a cluster
        that came from an older version; `cluster_id` is one that several nodes share; `archive` are options in place of
        those for the archived classes."""
        self.folder = folder
        self.listening = {protocol: f"{HOST}:{free_port()}" for protocol in protocols}
        self._scram = [argument for user in scram for argument in ("--add-scram", user)]
        self._features = [f"--feature={name}={level}" for name, level in (features or {}).items()]
        self._jvm = jvm
        self._archive = archive
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        self.controller_port = free_port()
        self.settings = dict(settings or {})
        self._cluster_id = cluster_id or new_cluster_id()
        self._child: Child | None = None

    @property
    def is_running(self) -> bool:
        return self._child is not None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise RuntimeError("the broker is not running")
        return self._child.pid

    def start(self) -> None:
        self.format()
        self.launch()

    def format(self) -> None:
        """Makes its data directory; one that is there already stays as it is."""
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self._properties_file
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
        archive = archived_classes() if self._archive is None else []
        formatting = ["java", *JVM, *archive, "-cp", f"{jars()}/*", "kafka.tools.StorageTool", "format"]
        done = subprocess.run(
            [
                *formatting,
                "--ignore-formatted",
                "-t",
                self._cluster_id,
                "-c",
                properties,
                *self._scram,
                *self._features,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise KafkaUnavailable(f"Kafka's storage could not be formatted: {(done.stderr or done.stdout)[-2000:]}")

    def launch(self) -> None:
        """Starts the process on a formatted directory and waits until it answers."""
        self.begin()
        self.wait_until_ready()

    def begin(self) -> None:
        """Starts the process: a node of several answers only once most of them run."""
        archive = archived_classes() if self._archive is None else self._archive
        java = ["java", *self._jvm, *archive, "-cp", f"{jars()}/*"]
        self._child = Child([*java, "kafka.Kafka", self._properties_file], log=self.folder / "broker.log")

    def wait_until_ready(self) -> None:
        assert self._child is not None
        deadline = time.monotonic() + READY_SECONDS
        while not answers(self.port):
            if self._child.exit_code is not None or time.monotonic() > deadline:
                self._child.kill()
                raise KafkaUnavailable(f"Apache Kafka did not come up:\n{self._child.output()}")
            time.sleep(0.05)  # nothing to await: a port of another process opens without telling

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()  # its data is thrown away, so there is nothing to shut down gracefully
            self._child = None

    def shut_down(self) -> None:
        """SIGTERM, so that it can be launched again without waiting for its own old session to end."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    @property
    def _properties_file(self) -> Path:
        return self.folder / "server.properties"

    def _properties(self) -> dict[str, object]:
        clients = [f"PLAINTEXT://{self.address}", *(f"{name}://{at}" for name, at in self.listening.items())]
        names = ["PLAINTEXT", *self.listening]
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "listeners": ",".join([*clients, f"CONTROLLER://{HOST}:{self.controller_port}"]),
            "advertised.listeners": ",".join(clients),
            "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in names)]),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "log",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "true",
            "num.partitions": 1,
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            "num.network.threads": 2,
            "num.io.threads": 4,
            **self.settings,
        }
