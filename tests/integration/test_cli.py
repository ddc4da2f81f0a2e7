"""The command line against a running server: what people and programs read, and how a server starts and stops."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from fencepost.cli import main
from fencepost.client.cluster.settings import ClientSettings, default_client_id
from tests.conftest import Kafka
from tests.integration.conftest import TestedServer
from tests.support.group_workers import until, working
from tests.support.process import Child

pytestmark = pytest.mark.integration

Run = Callable[..., Result]


@pytest.fixture
def run(ours: TestedServer) -> Run:
    """Runs a command against our server; fails if it did."""

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner(env={"FENCEPOST_SERVERS": ours.address}).invoke(main, arguments, prog_name="fencepost")
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def read(run: Run) -> Callable[..., Any]:
    """The command's answer as JSON."""
    return lambda *arguments: json.loads(run(*arguments, "--json").stdout)


def write(address: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0


# --- commands ---


def test_a_topic_goes_through_its_life(run: Run, read: Callable[..., Any], name: str) -> None:
    assert run("topic", "create", name, "-p", "2", "--set", "retention.ms=86400000").stdout == f"created {name}\n"
    assert re.search(rf"^{name} +2 +1$", run("topic", "list").stdout, re.MULTILINE)
    described = read("topic", "describe", name)
    assert [(entry["partition"], entry["start_offset"], entry["end_offset"]) for entry in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    assert {"name": "retention.ms", "value": "86400000"}.items() <= _config(described, "retention.ms").items()
    run("topic", "alter", name, "--partitions", "3", "--unset", "retention.ms")
    described = read("topic", "describe", name)
    assert len(described["partitions"]) == 3
    assert _config(described, "retention.ms")["source"] == "default"
    assert run("topic", "delete", name).stdout == f"deleted {name}\n"
    assert name not in run("topic", "list").stdout


def _config(described: Any, name: str) -> dict[str, Any]:
    (found,) = (entry for entry in described["configs"] if entry["name"] == name)
    assert isinstance(found, dict)
    return found


def test_describe_shows_offsets_and_the_configs_that_were_set(run: Run, ours: TestedServer, name: str) -> None:
    run("topic", "create", name, "--set", "max.message.bytes=1000000")
    write(ours.address, name, 3)
    shown = run("topic", "describe", name).stdout
    assert "  max.message.bytes=1000000\n" in shown
    assert "retention.ms" not in shown
    assert re.search(r"^ +0 +\d+ +\d+ +\d+ +0 +3 +3$", shown, re.MULTILINE)


def test_an_altered_topic_can_be_tried_first(run: Run, read: Callable[..., Any], name: str) -> None:
    run("topic", "create", name)
    assert run("topic", "alter", name, "-p", "4", "--dry-run").stdout == f"would alter {name}\n"
    assert len(read("topic", "describe", name)["partitions"]) == 1


def test_producers_shows_the_highest_sequence(
    run: Run, read: Callable[..., Any], ours: TestedServer, name: str
) -> None:
    run("topic", "create", name)
    assert run("producers", name).stdout == f"no idempotent producers in {name}\n"
    write(ours.address, name, 5)
    (state,) = read("producers", name)
    assert (state["partition"], state["epoch"], state["last_sequence"], state["transaction_start"]) == (0, 0, 4, None)
    assert re.search(rf"^ +0 +{state['pid']} +0 +4 +\d{{4}}-", run("producers", name).stdout, re.MULTILINE)


def test_a_groups_members_are_named_with_what_they_have(run: Run, ours: TestedServer, name: str) -> None:
    run("topic", "create", name, "--partitions", "3")
    night_shift: Any = ClientSettings.from_config({"bootstrap.servers": ours.address, "client.id": "night-shift"})
    with (
        working(ours.address, name, name, 1, member="worker-1") as (one,),
        working(night_shift, name, name, 1) as (other,),
    ):
        until(lambda: {len(one.share), len(other.share)} == {1, 2})
        shown = run("group", "describe", name).stdout
        assert f"group {name}: Stable, consumer (uniform), 2 member(s), coordinator {ours.address}" in shown
        member = other.reader._member
        assert member is not None
        for called, client, worker in (
            ("worker-1", default_client_id(), one),
            (member.member_id, "night-shift", other),
        ):
            theirs = ",".join(str(each.partition) for each in sorted(worker.share))
            assert re.search(rf"^{called} +{client} +/127.0.0.1 +{name} {theirs}$", shown, re.MULTILINE), shown
            for each in worker.share:
                assert re.search(rf"^{name} +{each.partition} .* {called}$", shown, re.MULTILINE), shown


def test_a_group_is_listed_described_moved_and_deleted(
    run: Run, read: Callable[..., Any], ours: TestedServer, name: str
) -> None:
    run("topic", "create", name)
    write(ours.address, name, 5)
    group = f"group-of-{name}"
    dry = run("group", "reset", group, "--topic", name, "--to", "2", "--dry-run").stdout
    assert re.search(rf"^{name} +0 +- +2$", dry, re.MULTILINE)
    assert dry.endswith("dry run: nothing was changed\n")
    assert group not in run("group", "list").stdout
    run("group", "reset", group, "--topic", name, "--to", "2")
    assert re.search(rf"^{group} +Empty +classic$", run("group", "list").stdout, re.MULTILINE)
    (offset,) = read("group", "describe", group)["offsets"]
    assert (offset["committed"], offset["end"], offset["lag"]) == (2, 5, 3)
    assert re.search(rf"^{name} +0 +2 +5 +3 +-$", run("group", "describe", group).stdout, re.MULTILINE)
    assert run("group", "delete", group).stdout == f"deleted {group}\n"
    assert f"there is no group '{group}'" in run("group", "describe", group, code=1).stderr


def test_ping_and_doctor_find_the_server(run: Run, read: Callable[..., Any], ours: TestedServer) -> None:
    (pong,) = read("ping")
    assert pong["address"] == ours.address
    found = {finding["what"]: finding for finding in read("doctor")}
    assert [found[what]["state"] for what in ("python", "kernel", "server", "transactions", "own", "broker 1")] == [
        "ok"
    ] * 6
    assert ours.address in found["server"]["detail"]
    assert "reached" in run("doctor").stdout


def test_doctor_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def version(package: str) -> str:
        if package in ("pyspark", "grpcio", "pyyaml", "uvloop"):
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr("fencepost.kernel.IMPLEMENTATION", "python")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    shown, _, todo = run("doctor").stdout.partition("\nTo do:\n")
    assert re.search(r"^pyspark +absent +not installed", shown, re.MULTILINE)
    assert re.search(r"^uvloop +slow ", shown, re.MULTILINE)
    assert re.search(r"^kernel +slow +pure Python", shown, re.MULTILINE)
    assert re.search(r"^java +absent ", shown, re.MULTILINE)
    assert re.search(r"^grpcio +absent +not installed; needed for Spark Connect", shown, re.MULTILINE)
    assert [line.split(":")[0].strip() for line in todo.splitlines()] == [
        *("kernel", "uvloop", "pyspark", "grpcio", "pyyaml", "java")
    ]
    assert todo.count("pip install 'fencepost[spark]'") == 3
    assert "install Java 17 or newer" in todo


@pytest.mark.kafka
def test_doctor_knows_apache_kafka(kafka: Kafka) -> None:
    result = CliRunner().invoke(main, ["doctor", "--servers", kafka.address, "--json"])
    assert result.exit_code == 0
    found = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert (found["transactions"]["state"], found["own"]["state"]) == ("ok", "ok")
    assert found["own"]["detail"] == "built by the clients from transactions (not a fencepost server)"


def test_doctor_names_an_advertised_address_that_leads_nowhere(fencepost_server_factory: Callable[..., Any]) -> None:
    server = fencepost_server_factory(advertise="127.0.0.1:1")
    result = CliRunner().invoke(main, ["doctor", "--servers", server.address])
    assert result.exit_code == 1
    assert "advertised as 127.0.0.1:1, which cannot be reached from here" in result.stdout
    assert result.stderr == "fencepost: 1 check failed (broker 1); the details are above\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["topic", "describe", "nope"], "fencepost: UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'nope'\n"),
        (["topic", "delete", "nope"], "fencepost: UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'nope'\n"),
        (["producers", "nope"], "fencepost: UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'nope'\n"),
        (["group", "describe", "nope"], "fencepost: GROUP_ID_NOT_FOUND: there is no group 'nope'\n"),
        (["ping", "--servers", "127.0.0.1:1"], "fencepost: nothing listens at 127.0.0.1:1: "),
    ],
)
def test_what_is_not_there_is_one_line_on_stderr(run: Run, arguments: list[str], expected: str) -> None:
    result = run(*arguments, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith(expected)
    assert result.stderr.count("\n") == 1


def test_describing_an_unknown_topic_does_not_create_it(run: Run, name: str) -> None:
    run("topic", "describe", name, code=1)
    run("producers", name, code=1)
    assert name not in run("topic", "list").stdout


def test_of_several_topics_it_is_said_which_were_created_and_which_deleted(run: Run, name: str) -> None:
    first, second, third = (f"{name}-{number}" for number in range(3))
    run("topic", "create", second)
    said = run("topic", "create", first, second, third, code=1).stderr
    assert said == f"fencepost: TOPIC_ALREADY_EXISTS: topic '{second}' already exists; created {first}, {third}\n"
    said = run("topic", "delete", first, f"{name}-9", third, code=1).stderr
    assert said == f"fencepost: UNKNOWN_TOPIC_OR_PARTITION: there is no topic '{name}-9'; deleted {first}, {third}\n"
    assert "; " not in run("topic", "create", second, code=1).stderr


def test_a_config_that_the_server_refuses_is_called_wrongly(run: Run, name: str) -> None:
    run("topic", "create", name, "--set", "retention.m=1", code=2)
    run("topic", "create", name)
    run("topic", "alter", name, "--set", "retention.ms=soon", code=2)


def test_tls_at_a_server_that_speaks_none_is_said(run: Run) -> None:
    said = run("ping", "-X", "security.protocol=SSL", code=1).stderr
    assert re.search(r"TLS with \S+ failed: .*(does not speak TLS|a listener without TLS does this)", said), said


@pytest.mark.parametrize(("typed", "kept"), [("n\n", True), ("y\n", False)])
def test_at_a_terminal_a_topic_is_deleted_only_after_a_yes(
    run: Run, ours: TestedServer, name: str, monkeypatch: pytest.MonkeyPatch, typed: str, kept: bool
) -> None:
    run("topic", "create", name)

    class Terminal(CliRunner):
        """click gives each call a stdin of its own; this one claims to be a terminal."""

        def isolation(self, *args: Any, **how: Any) -> Any:
            isolated = super().isolation(*args, **how)

            @contextlib.contextmanager
            def at_a_terminal() -> Iterator[Any]:
                with isolated as streams:
                    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
                    yield streams

            return at_a_terminal()

    result = Terminal().invoke(main, ["topic", "delete", name, "--servers", ours.address], input=typed)
    assert result.exit_code == int(kept)
    assert f"delete {name} with all records? [y/N]" in result.output
    assert (name in run("topic", "list").stdout) is kept


# --- fencepost serve ---


class Serving:
    """`fencepost serve` as a process."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.child = Child([sys.executable, "-m", "fencepost", "serve", "--no-http", *arguments], log=log)
        while (found := re.search(r"listening on (\S+)\ndata in (\S+)", self.child.output())) is None:
            assert self.child.exit_code is None, self.child.output()
            time.sleep(0.01)
        self.address, self.data = found[1], Path(found[2])


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def serve(*arguments: str) -> Serving:
        log = tmp_path / f"serve-{len(started)}.txt"
        started.append(Serving(log, "--listen", "127.0.0.1:0", *arguments))
        return started[-1]

    yield serve
    for server in started:
        if server.child.exit_code is None:
            server.child.kill()


def ask(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--servers", address])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_server_cleanly(serving: Callable[..., Serving], tmp_path: Path, name: str) -> None:
    server = serving("--data", str(tmp_path / "data"))
    assert ask(server.address, "topic", "create", "orders").exit_code == 0
    server.child._popen.send_signal(signal.Signals[name])
    assert server.child.wait() == 0
    assert server.child.output().endswith("fencepost: stopped\n")
    assert "Traceback" not in server.child.output()


@pytest.mark.fault
def test_a_killed_server_starts_again_where_it_was(serving: Callable[..., Serving], tmp_path: Path) -> None:
    """IDEM-7"""
    server = serving("--data", str(tmp_path / "data"))
    write(server.address, "orders", 10)  # created on first use
    before = json.loads(ask(server.address, "producers", "orders", "--json").stdout)
    server.child.kill()
    server = serving("--data", str(tmp_path / "data"))
    (partition,) = json.loads(ask(server.address, "topic", "describe", "orders", "--json").stdout)["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (0, 10)
    after = json.loads(ask(server.address, "producers", "orders", "--json").stdout)
    assert [(state["pid"], state["last_sequence"]) for state in after] == [(before[0]["pid"], 9)]


def test_a_data_directory_has_one_server_at_a_time(serving: Callable[..., Serving], tmp_path: Path) -> None:
    data = tmp_path / "data"
    serving("--data", str(data))
    second = Child(
        [sys.executable, "-m", "fencepost", "serve", "--data", str(data), "--listen", "127.0.0.1:0"],
        log=tmp_path / "second.txt",
    )
    assert second.wait() == 1
    assert second.output().startswith(f"fencepost: {data} is in use by another fencepost server")
    assert second.output().count("\n") == 1


def test_a_port_in_use_is_one_line_and_changes_no_directory(serving: Callable[..., Serving], tmp_path: Path) -> None:
    old = serving("--data", str(tmp_path / "old"))
    write(old.address, "orders", 3)
    assert old.child.stop() == 0
    first = serving("--ephemeral")
    for data in ("new", "old"):
        command = [
            sys.executable,
            "-m",
            "fencepost",
            "serve",
            "--data",
            str(tmp_path / data),
            "--listen",
            first.address,
        ]
        second = Child(command, log=tmp_path / f"{data}.txt")
        assert second.wait() == 1
        assert first.address in second.output()
        assert second.output().count("\n") == 1
    assert not (tmp_path / "new").exists()
    again = serving("--data", str(tmp_path / "old"))
    assert ask(again.address, "consume", "orders").stdout == "0\n1\n2\n"


def test_an_ephemeral_server_leaves_nothing_behind(serving: Callable[..., Serving]) -> None:
    server = serving("--ephemeral")
    write(server.address, "orders", 1)
    assert server.data.exists()
    assert server.child.stop() == 0
    assert not server.data.exists()


def test_topics_are_created_on_first_use_only_if_that_is_allowed(serving: Callable[..., Serving]) -> None:
    server = serving("--ephemeral", "--no-auto-create")
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0, "message.timeout.ms": 1000})
    failures: list[Any] = []
    producer.produce("orders", b"x", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(60) == 0
    assert failures[0] is not None
    assert ask(server.address, "topic", "list").stdout.startswith("no topics")


def test_topics_created_on_first_use_have_the_given_number_of_partitions(serving: Callable[..., Serving]) -> None:
    server = serving("--ephemeral", "--partitions", "4")
    write(server.address, "orders", 1)
    assert re.search(r"^orders +4 +1$", ask(server.address, "topic", "list").stdout, re.MULTILINE)


def test_the_advertised_address_is_what_clients_are_told(serving: Callable[..., Serving]) -> None:
    server = serving("--ephemeral", "--advertise", "log.example:1234")
    answer = ask(server.address, "doctor", "--json")
    assert "advertised as log.example:1234, which cannot be reached from here" in answer.stdout
