"""The command line tools of Kafka's distribution, and every call of Java's admin client that a single node can answer.

The tools run one after the other in one JVM (`java_tools`), hence this is quick. VerifiableProducer,
ProducerPerformance and DumpLogSegments are tested in `test_java.py`, groups with members in `test_groups_java.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.java_tools import CONFIGS, GROUPS, JAVA, SECONDS, TOPICS, Run, Tools
from tests.support.batches import batch
from tests.support.group_client import await_coordinator, commit, fetch_offsets
from tests.support.kafka import java
from tests.support.raw import RawClient

pytestmark = [pytest.mark.compat, pytest.mark.kafka, pytest.mark.usefixtures("kafka_jars")]

PACKAGE = "org.apache.kafka.tools"


@pytest.fixture
def group(raw: RawClient, name: str) -> str:
    """A name for a group, whose coordinator is ready."""
    found = f"group-{name}"
    await_coordinator(raw, found)
    return found


# --- topics ---


def test_topics_are_created_listed_described_grown_and_deleted(run: Run, name: str) -> None:
    created = run(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=86400000")
    assert f"Created topic {name}." in created.lines
    assert name in run(TOPICS, "--list").lines
    run(TOPICS, "--alter", "--topic", name, "--partitions", "4")
    head, *partitions = run(TOPICS, "--describe", "--topic", name).lines
    assert re.fullmatch(
        rf"Topic: {name}\tTopicId: \S{{22}}\tPartitionCount: 4\tReplicationFactor: 1\t"
        r"Configs: \S*retention.ms=86400000\S*",
        head,
    )
    assert [line.strip() for line in partitions] == [
        f"Topic: {name}\tPartition: {index}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr:" for index in range(4)
    ]
    run(TOPICS, "--delete", "--topic", name)
    assert name not in run(TOPICS, "--list").lines
    assert "does not exist" in run(TOPICS, "--describe", "--topic", name, expect=1).out


def test_topics_are_chosen_by_pattern_and_by_trouble(run: Run, topic: str) -> None:
    assert run(TOPICS, "--list", "--topic", f"{topic[:-1]}.").lines == [topic]
    run(CONFIGS, "--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "retention.ms=86400000")
    [described] = run(TOPICS, "--describe", "--topics-with-overrides", "--topic", topic).lines
    assert "retention.ms=86400000" in described
    for trouble in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        said = run(TOPICS, "--describe", f"--{trouble}-partitions", "--topic", topic).out
        assert (topic in said) == (trouble == "at-min-isr"), "one replica is what one replica can be"


def test_the_topic_tool_says_what_was_wrong(run: Run, topic: str) -> None:
    assert "already exists" in run(TOPICS, "--create", "--topic", topic, expect=1).out
    assert "partition" in run(TOPICS, "--alter", "--topic", topic, "--partitions", "1", expect=1).out
    assert (
        "replication"
        in run(TOPICS, "--create", "--topic", f"{topic}-3", "--replication-factor", "3", expect=1).out.lower()
    )
    assert "ASCII" in run(TOPICS, "--create", "--topic", "sp aces", expect=1).out


# --- configs ---


def test_configs_of_a_topic_are_set_shown_and_deleted(run: Run, topic: str) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run(CONFIGS, "--alter", *entity, "--add-config", "max.message.bytes=2000,cleanup.policy=[compact,delete]")
    shown = run(CONFIGS, "--describe", *entity).out
    assert "cleanup.policy=compact,delete sensitive=false" in shown
    assert "max.message.bytes=2000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000" in shown
    run(CONFIGS, "--alter", *entity, "--delete-config", "cleanup.policy")
    shown = run(CONFIGS, "--describe", *entity).out
    assert "cleanup.policy" not in shown
    assert "max.message.bytes=2000" in shown
    everything = run(CONFIGS, "--describe", "--all", *entity).out
    for name in (
        "retention.ms=604800000",
        "cleanup.policy=delete",
        "min.insync.replicas=1",
        "segment.bytes=1073741824",
    ):
        assert f"  {name} sensitive=false" in everything


def test_a_config_that_does_not_exist_is_an_error(run: Run, topic: str) -> None:
    said = run(
        CONFIGS,
        "--alter",
        "--entity-type",
        "topics",
        "--entity-name",
        topic,
        "--add-config",
        "retention.mss=1",
        expect=1,
    )
    assert "InvalidConfigurationException" in said.error
    assert "retention.mss" in said.error


@pytest.mark.parametrize("kind", ["brokers", "users", "clients", "ips", "groups", "client-metrics"])
def test_configs_of_everything_else_can_be_asked_for(run: Run, kind: str) -> None:
    run(CONFIGS, "--describe", "--entity-type", kind)


def test_the_settings_of_the_node_are_shown(run: Run) -> None:
    said = run(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1").out
    assert "  node.id=1 sensitive=false" in said


# --- records ---


def test_what_the_console_producer_reads_the_console_consumer_prints(run: Run, topic: str, group: str) -> None:
    lines = "".join(f"{number % 7}:value {number}\n" for number in range(100))
    with_keys = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    run(f"{PACKAGE}.ConsoleProducer", "--topic", topic, *with_keys, stdin=lines)
    read = ("--topic", topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "30000")
    properties = ("print.key=true", "key.separator=:")
    printing = [word for text in properties for word in ("--formatter-property", text)]
    said = run(f"{PACKAGE}.consumer.ConsoleConsumer", *read, "--group", group, *printing)
    assert sorted(said.lines) == sorted(lines.splitlines())
    assert "Processed a total of 100 messages" in said.error
    at = ("--topic", topic, "--partition", "1", "--offset", "1", "--max-messages", "2", "--timeout-ms", "30000")
    assert len(run(f"{PACKAGE}.consumer.ConsoleConsumer", *at).lines) == 2


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_verifiable_consumer_reads_commits_and_leaves(
    run: Run, raw: RawClient, topic: str, group: str, protocol: str
) -> None:
    for partition in (0, 1):
        raw.produce(topic, batch([b"x"] * 25), partition=partition)
    what = ("--topic", topic, "--group-id", group, "--max-messages", "50", "--reset-policy", "earliest")
    said = run(f"{PACKAGE}.VerifiableConsumer", *what, "--group-protocol", protocol)
    events = [json.loads(line) for line in said.lines if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 50
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")
    assert [event["name"] for event in events][-2:] == ["partitions_revoked", "shutdown_complete"]
    assert {found.committed_offset for found in fetch_offsets(raw, group, {topic: [0, 1]}).values()} == {25}


def test_offsets_are_printed_for_every_kind_of_time(run: Run, raw: RawClient, topic: str) -> None:
    start = 1_700_000_000_000
    raw.produce(topic, batch([b"x"] * 5, timestamps=[start] * 5))
    raw.produce(topic, batch([b"x"] * 2, timestamps=[start + 1000] * 2))

    def offsets(time: str) -> list[str]:
        return run(f"{PACKAGE}.GetOffsetShell", "--topic", topic, "--time", time).lines

    assert offsets("latest") == offsets("-1") == [f"{topic}:0:7", f"{topic}:1:0"]
    assert offsets("earliest") == offsets("-2") == offsets("earliest-local") == [f"{topic}:0:0", f"{topic}:1:0"]
    assert offsets("max-timestamp")[0] in (f"{topic}:0:5", f"{topic}:0:6")
    assert offsets(str(start + 1))[0] == f"{topic}:0:5"
    assert offsets(str(start + 5000)) == []


def test_records_are_deleted_up_to_an_offset(run: Run, raw: RawClient, topic: str, tmp_path: Path) -> None:
    for _ in range(3):
        raw.produce(topic, batch([b"x"] * 5))
    wish = tmp_path / "delete.json"
    wish.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 7}], "version": 1}))
    said = run(f"{PACKAGE}.DeleteRecordsCommand", "--offset-json-file", wish)
    assert f"partition: {topic}-0\tlow_watermark: 7" in said.lines
    assert f"{topic}:0:7" in run(f"{PACKAGE}.GetOffsetShell", "--topic", topic, "--time", "earliest").lines


# --- groups ---


def test_offsets_of_a_group_are_reset_in_every_way(run: Run, raw: RawClient, topic: str, group: str) -> None:
    start = 1_700_000_000_000
    for number in range(10):
        raw.produce(topic, batch([b"x"], timestamps=[start + 1000 * number]))
    commit(raw, group, topic, 4)
    dry = ("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--dry-run")
    run(GROUPS, *dry)
    assert fetch_offsets(raw, group, {topic: [0]})[topic, 0].committed_offset == 4

    def reset(*how: str) -> int:
        said = run(GROUPS, "--reset-offsets", "--group", group, "--topic", f"{topic}:0", *how, "--execute")
        [row] = [line.split() for line in said.lines if line.startswith(group)]
        assert row[1:3] == [topic, "0"]
        assert fetch_offsets(raw, group, {topic: [0]})[topic, 0].committed_offset == int(row[3])
        return int(row[3])

    assert reset("--to-earliest") == 0
    assert reset("--to-latest") == 10
    assert reset("--shift-by", "-3") == 7
    assert reset("--shift-by", "100") == 10
    assert reset("--to-offset", "5") == 5
    assert reset("--to-datetime", "2023-11-14T22:13:23.000") == 3
    assert reset("--by-duration", "PT1M") == 10
    assert reset("--to-current") == 10


def test_groups_are_listed_described_and_deleted(run: Run, raw: RawClient, topic: str, group: str) -> None:
    raw.produce(topic, batch([b"x"] * 5))
    commit(raw, group, topic, 2)
    assert group in run(GROUPS, "--list").lines
    listed = [line.split() for line in run(GROUPS, "--list", "--state", "--type").lines]
    assert [group, "Classic", "Empty"] in listed or [group, "Empty", "Classic"] in listed
    assert [group, "Classic"] in [line.split()[:2] for line in run(f"{PACKAGE}.GroupsCommand", "--list").lines]
    described = run(GROUPS, "--describe", "--group", group)
    assert [group, topic, "0", "2", "5", "3", "-", "-", "-"] in [line.split() for line in described.lines]
    assert "has no active members" in described.error
    assert "Empty" in run(GROUPS, "--describe", "--group", group, "--state").out
    run(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    assert fetch_offsets(raw, group, None) == {}
    commit(raw, group, topic, 2)
    assert "was successful" in run(GROUPS, "--delete", "--group", group).out
    assert group not in run(GROUPS, "--list").lines
    assert "GroupIdNotFoundException" in run(GROUPS, "--describe", "--group", group).out


@pytest.mark.parametrize("kind", ["consumer.group.ShareGroupCommand", "streams.StreamsGroupCommand"])
def test_groups_of_the_other_kinds_can_be_asked_for(run: Run, kind: str) -> None:
    run(f"{PACKAGE}.{kind}", "--list")


# --- the node ---


def test_the_cluster_is_described(run: Run, jvm: Callable[[], Tools], address: str, raw: RawClient) -> None:
    cluster_id = raw.metadata([]).cluster_id
    said = jvm().run(f"{PACKAGE}.ClusterTool", "cluster-id", "--bootstrap-server", address)
    assert said.lines == [f"Cluster ID: {cluster_id}"]
    said = jvm().run(f"{PACKAGE}.ClusterTool", "list-endpoints", "--bootstrap-server", address)
    host, _, port = address.rpartition(":")
    assert said.lines[1].split() == ["1", host, port, "null", "unfenced", "broker"]


def test_the_versions_of_all_apis_are_shown(run: Run) -> None:
    said = run(f"{PACKAGE}.BrokerApiVersionsCommand").out
    assert "\tProduce(0): 0 to 13 [usable: 13],\n" in said
    assert "ListConfigResources(74): 0 to 1 [usable: 1]" in said


def test_sizes_on_the_disk_are_shown(run: Run, raw: RawClient, topic: str) -> None:
    sent = batch([b"x" * 1000])
    raw.produce(topic, sent)
    said = run(f"{PACKAGE}.LogDirsCommand", "--describe", "--topic-list", topic)
    [broker] = json.loads(said.lines[-1])["brokers"]
    [directory] = broker["logDirs"]
    sizes = {row["partition"]: row["size"] for row in directory["partitions"]}
    assert sizes == {f"{topic}-0": len(sent), f"{topic}-1": 0}


def test_producers_and_transactions_are_shown(run: Run, raw: RawClient, topic: str) -> None:
    pid = raw.new_pid()
    raw.produce(topic, batch([b"x"] * 3, pid=pid, epoch=0, sequence=0))
    tool = f"{PACKAGE}.TransactionsCommand"
    said = run(tool, "describe-producers", "--topic", topic, "--partition", "0")
    [row] = [line.split() for line in said.lines[1:]]
    assert row[:4] == [str(pid), "0", "-1", "2"], "pid, epoch, the coordinator's epoch, the last sequence"
    assert run(tool, "list").lines[0].split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
    assert len(run(tool, "find-hanging", "--broker-id", "1").lines) == 1, "the heading alone"
    assert len(run(tool, "find-hanging", "--topic", topic).lines) == 1


def test_tools_of_clusters_find_nothing_to_do(run: Run, topic: str) -> None:
    elect = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert "Valid replica already elected" in run(f"{PACKAGE}.LeaderElectionCommand", *elect).out
    reassigned = run(f"{PACKAGE}.reassign.ReassignPartitionsCommand", "--list")
    assert reassigned.lines == ["No partition reassignments found."]
    assert run(f"{PACKAGE}.ClientMetricsCommand", "--list").out.strip() == ""
    run(f"{PACKAGE}.FeatureCommand", "describe")
    refused = run(f"{PACKAGE}.FeatureCommand", "upgrade", "--feature", "group.version=1", expect=1)
    assert "Invalid update version 1 for feature group.version" in refused.out


def test_a_reassignment_that_is_done_can_be_verified(run: Run, topic: str, tmp_path: Path) -> None:
    """The tool also clears the throttles of brokers and topics."""
    plan = tmp_path / "plan.json"
    partitions = [{"topic": topic, "partition": 0, "replicas": [1], "log_dirs": ["any"]}]
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tool = f"{PACKAGE}.reassign.ReassignPartitionsCommand"
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(plan.read_text().replace("[1]", "[7]"))
    verified = run(tool, "--reassignment-json-file", plan, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed." in verified.out
    executed = run(tool, "--reassignment-json-file", plan, "--execute")
    assert "Successfully started partition reassignment" in executed.out
    refused = run(tool, "--reassignment-json-file", elsewhere, "--execute", expect=1)
    assert "7" in refused.out
    assert "Clearing broker-level throttles" in verified.out
    assert "Clearing topic-level throttles" in verified.out


def test_the_quorum_is_this_node(run: Run) -> None:
    said = run(f"{PACKAGE}.MetadataQuorumCommand", "describe", "--status").out
    assert re.search(r"^LeaderId:\s+1$", said, re.MULTILINE)
    assert re.search(r'^CurrentVoters:\s+\[.*"id": 1', said, re.MULTILINE)
    [row] = [
        line
        for line in run(f"{PACKAGE}.MetadataQuorumCommand", "describe", "--replication").lines
        if "Leader" in line and "Node" not in line
    ]
    assert row.split()[0] == "1"


def test_settings_of_the_broker_have_kafkas_names_and_documentation(run: Run) -> None:
    said = run(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1").out
    for name in ("advertised.listeners", "listeners", "log.dirs", "node.id", "num.partitions", "message.max.bytes"):
        assert re.search(rf"^\s*{re.escape(name)}=\S", said, re.MULTILINE), name


def test_acls_are_said_to_be_disabled(run: Run) -> None:
    assert "SecurityDisabledException" in run(f"{PACKAGE}.AclCommand", "--list", expect=1).out


def test_kafkas_own_compatibility_check_of_an_idempotent_client_passes(run: Run, topic: str) -> None:
    abilities = (
        "offsets-for-times",
        "cluster-id",
        "create-topics",
        "describe-acls",
        "describe-configs",
        "idempotent-producer",
    )
    supported = [word for ability in abilities for word in (f"--{ability}-supported", "true")]
    what = ("--topic", topic, "--num-cluster-nodes", "1", "--expect-record-too-large-exception", "false")
    run(f"{PACKAGE}.ClientCompatibilityTest", *what, *supported)


def test_latency_from_end_to_end_is_measured(run: Run, name: str, raw: RawClient) -> None:
    raw.create_topic(name)
    what = ("--topic", name, "--num-records", "20", "--producer-acks", "all", "--record-size", "10")
    assert "Avg latency" in run(f"{PACKAGE}.EndToEndLatency", *what).out
    assert raw.end_offset(name) == 20


def test_consumer_performance_reads_all_there_is(run: Run, raw: RawClient, topic: str) -> None:
    raw.produce(topic, batch([b"x" * 100] * 50))
    said = run(f"{PACKAGE}.ConsumerPerformance", "--topic", topic, "--num-records", "50", "--timeout", "30000")
    assert said.lines[1].split(", ")[4] == "50"


# --- the admin client itself ---


def test_every_call_of_the_admin_client_is_answered(address: str, raw: RawClient, topic: str, group: str) -> None:
    raw.produce(topic, batch([b"x"] * 10, pid=raw.new_pid(), epoch=0, sequence=0))
    commit(raw, group, topic, 3)
    command = java(JAVA / "AdminCalls.java", address, topic, group)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    *calls, last = done.stdout.splitlines()
    assert [call for call in calls if not call.startswith("ok ")] == [], done.stderr[-3000:]
    assert last == "all calls were made", done.stderr[-3000:]


# --- quotas ---


def test_quotas_of_users_clients_and_addresses(run: Run, name: str) -> None:
    pair = ("--entity-type", "users", "--entity-name", name, "--entity-type", "clients", "--entity-default")
    run(CONFIGS, "--alter", *pair, "--add-config", "producer_byte_rate=1024,request_percentage=12.5")
    shown = run(CONFIGS, "--describe", *pair).out
    assert f"Quota configs for user-principal '{name}', the default client-id are" in shown
    assert "producer_byte_rate=1024.0" in shown
    assert "request_percentage=12.5" in shown
    run(CONFIGS, "--alter", *pair, "--delete-config", "producer_byte_rate,request_percentage")
    assert "producer_byte_rate" not in run(CONFIGS, "--describe", *pair).out
    address = ("--entity-type", "ips", "--entity-name", "192.0.2.7")
    run(CONFIGS, "--alter", *address, "--add-config", "connection_creation_rate=10")
    assert "connection_creation_rate=10.0" in run(CONFIGS, "--describe", *address).out
    run(CONFIGS, "--alter", *address, "--delete-config", "connection_creation_rate")
    refused = run(CONFIGS, "--alter", *address, "--add-config", "producer_byte_rate=1", expect=1)
    assert "producer_byte_rate" in refused.out + refused.error
