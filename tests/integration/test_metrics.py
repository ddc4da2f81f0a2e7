"""The metrics of a real server, after real clients have worked with it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import fencepost
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, Progress
from fencepost.errors import FencepostError
from fencepost.server.config.listener import ListenerConfig
from tests.support.certificates import make
from tests.support.http_client import ANY, Metrics, basic, get
from tests.support.logins import add_users, login_listener

pytestmark = pytest.mark.integration


@pytest.fixture
def server() -> Iterator[fencepost.Server]:
    with fencepost.Server(http_address=ANY) as started:
        yield started


def transactional(server: fencepost.Server, name: str) -> Any:
    producer = confluent_kafka.Producer({"bootstrap.servers": server.address, "transactional.id": name})
    producer.init_transactions()
    return producer


def commit(server: fencepost.Server, group: str, topic: str, **offsets: int) -> None:
    """Commit offsets by partition: p0=3."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.address, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, int(name[1:]), at) for name, at in offsets.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def test_offsets_and_lag_are_those_of_the_log(server: fencepost.Server) -> None:
    with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address) as producer:
        admin.create_topic("orders", 2)
        for number in range(10):
            producer.send("orders", b"x", partition=number % 2)
        producer.flush()
        consumer = confluent_kafka.Consumer({"bootstrap.servers": server.address, "group.id": "readers"})
        offsets = [confluent_kafka.TopicPartition("orders", 0, 3), confluent_kafka.TopicPartition("orders", 1, 99)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()
        metrics = Metrics(server)
    assert metrics("kafka_topic_partitions", topic="orders") == 2
    assert metrics("kafka_topic_partition_current_offset", topic="orders", partition="1") == 5
    assert metrics("kafka_topic_partition_oldest_offset", topic="orders", partition="1") == 0
    labels = {"consumergroup": "readers", "topic": "orders"}
    assert metrics("kafka_consumergroup_current_offset", **labels, partition="0") == 3
    assert metrics("kafka_consumergroup_lag", **labels, partition="0") == 2
    assert metrics("kafka_consumergroup_lag", **labels, partition="1") == 0  # committed behind the end
    assert metrics("kafka_consumergroup_lag_sum", **labels) == 2
    assert metrics("kafka_consumergroup_members", consumergroup="readers") == 0
    assert metrics("kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == 10
    assert (metrics("fencepost_request_duration_seconds_count", api="Produce") or 0) >= 1
    assert metrics("fencepost_request_duration_seconds_bucket", api="Produce", le="+Inf") == metrics(
        "fencepost_request_duration_seconds_count", api="Produce"
    )


def test_takeovers_and_fenced_writes_are_counted(server: fencepost.Server) -> None:
    guarded = {"fencepost.writer.group": "writers"}
    with fencepost.Admin(server.address) as admin:
        admin.create_topic("journal", 1, configs=guarded)
    with fencepost.Producer(server.address) as first, fencepost.Producer(server.address) as second:
        first.own("writers", ["journal-0"], generation=0)
        first.send("journal", b"1", partition=0).result()
        assert Metrics(server)("fencepost_owned_resources", owner_group="writers") == 1
        second.own("writers", ["journal-0"], generation=0)
        second.send("journal", b"2", partition=0).result()
        with fencepost.Producer(server.address) as stranger, pytest.raises(FencepostError):
            stranger.send("journal", b"3", partition=0).result()
        metrics = Metrics(server)
    assert metrics("fencepost_takeovers_total") == 1
    assert (metrics("fencepost_fenced_batches_total", by="owner") or 0) >= 1
    assert (metrics("fencepost_refused_batches_total", error="TOPIC_AUTHORIZATION_FAILED") or 0) >= 1


def test_an_open_transaction_is_seen_with_what_it_holds_back(server: fencepost.Server) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": server.address, "transactional.id": "pays"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("payments", b"1")
    producer.flush()
    metrics = Metrics(server)
    assert metrics("fencepost_open_transactions") == 1
    assert metrics("fencepost_partition_undecided_offsets", topic="payments", partition="0") == 1
    producer.abort_transaction()
    metrics = Metrics(server)
    assert metrics("fencepost_open_transactions") == 0
    assert metrics("fencepost_partition_undecided_offsets", topic="payments", partition="0") == 0


def test_the_number_of_series_can_be_limited() -> None:
    with fencepost.Server(http_address=ANY, http_max_series=50) as started:
        with fencepost.Admin(started.address) as admin, fencepost.Producer(started.address) as producer:
            admin.create_topic("wide", 20)
            for index in range(20):
                producer.send("wide", b"x", partition=index)
            producer.flush()
        metrics = Metrics(started)
    assert metrics.sum("kafka_topic_partition_current_offset") == 0
    assert metrics("fencepost_metrics_partitions_left_out") == 20
    assert metrics("kafka_server_brokertopicmetrics_messagesin_total", topic="wide") == 20


def test_the_lag_in_records_leaves_out_markers_and_aborted_records(server: fencepost.Server) -> None:
    producer = transactional(server, "pays")
    for commits in (True, False, True):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce("payments", b"x")
        producer.flush()  # an abort would drop what is not sent
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce("payments", b"undecided")
    producer.flush()
    commit(server, "readers", "payments", p0=2)
    metrics = Metrics(server)
    labels = {"consumergroup": "readers", "topic": "payments"}
    assert metrics("kafka_consumergroup_lag", **labels, partition="0") == 17
    assert metrics("fencepost_consumergroup_lag_records", **labels, partition="0") == 8
    assert metrics("fencepost_consumergroup_lag_records_sum", **labels) == 8
    assert metrics("fencepost_consumergroup_lags_uncounted") == 0
    producer.abort_transaction()
    assert Metrics(server)("fencepost_consumergroup_lag_records", **labels, partition="0") == 8


def test_the_progress_of_a_sink_is_its_last_committed_record(server: fencepost.Server) -> None:
    topic = PROGRESS_TOPIC_PREFIX + "enrich"
    producer = transactional(server, "fencepost.sink.enrich")
    for batch, commits in ((7, True), (8, False)):
        progress = Progress("query-1", batch, 3, "token", "somewhere", 1, 1_700_000_000_000 + batch)
        producer.begin_transaction()
        producer.produce(topic, progress.encode(), key=PROGRESS_KEY)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()
        metrics = Metrics(server)
    assert metrics("fencepost_sink_batch", sink="enrich") == 7
    assert metrics("fencepost_sink_progress_timestamp_seconds", sink="enrich") == 1_700_000_000.007
    assert metrics("fencepost_sink_incarnation", sink="enrich") == 3
    assert metrics("fencepost_sink_info", sink="enrich", query="query-1", host="somewhere") == 1
    for foreign in (
        b"not a progress record",
        progress.encode().replace(b'"batch": 8', b'"batch": "x"'),
        b"[" * 100_000,
    ):
        producer.begin_transaction()
        producer.produce(topic, foreign, key=PROGRESS_KEY)
        producer.commit_transaction()
        assert Metrics(server)("fencepost_sink_batch", sink="enrich") is None


def test_what_readers_get_and_what_is_left_of_the_disk_is_known(server: fencepost.Server) -> None:
    with fencepost.Producer(server.address) as producer:
        producer.send("orders", b"x" * 10_000, partition=0).result()
    assert Metrics(server)("kafka_server_brokertopicmetrics_bytesout_total", topic="orders") == 0
    with fencepost.Reader(server.address, "orders", start="earliest") as reader:
        assert len(reader.poll(30) or ()) == 1
    metrics = Metrics(server)
    size = metrics("kafka_server_brokertopicmetrics_bytesin_total", topic="orders") or 0
    assert (metrics("kafka_server_brokertopicmetrics_bytesout_total", topic="orders") or 0) >= size > 10_000
    free = metrics("fencepost_disk_free_bytes") or 0
    assert abs(free - shutil.disk_usage(server.data).free) < free / 4 + (64 << 20)
    assert (metrics("process_resident_memory_bytes") or 0) > 1 << 20


def test_failed_logins_are_counted(tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"admin": "admin-secret"})
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY,
    ) as started:  # fmt: skip
        url, right = f"{started.http}/metrics", basic("admin", "admin-secret")
        assert "fencepost_failed_logins_total 0\n" in get(url, right).text
        assert get(url, basic("admin", "a guess")).status == 401
        assert "fencepost_failed_logins_total 1\n" in get(url, right).text


def test_the_time_for_which_quotas_mute_clients_is_counted() -> None:
    with fencepost.Server(http_address=ANY, quota_burst_ms=1000) as server, fencepost.Admin(server.address) as admin:
        admin.set_quotas({"client-id": None}, {"producer_byte_rate": 90_000})
        with fencepost.Producer(server.address, linger=0) as producer:
            for _ in range(3):
                producer.send("orders", bytes(100_000)).result()
        assert (Metrics(server)("fencepost_throttled_seconds_total") or 0) > 1


def test_the_end_of_a_certificate_is_known(tmp_path: Path) -> None:
    certificates = make(tmp_path)
    listeners = (
        ListenerConfig(name="plain", address=ANY),
        ListenerConfig(name="secure", address=ANY, protocol="ssl", certificate=certificates.server),
    )
    with fencepost.Server(listeners=listeners, http_address=ANY) as started:
        metrics = Metrics(started)
    ends = metrics("fencepost_certificate_expiry_timestamp_seconds", listener="secure")
    text = subprocess.check_output(["openssl", "x509", "-enddate", "-noout", "-in", certificates.server], text=True)
    assert ends == ssl.cert_time_to_seconds(text.strip().removeprefix("notAfter="))
    assert metrics("fencepost_certificate_expiry_timestamp_seconds", listener="plain") is None


def test_the_time_of_the_last_backup_is_known_also_after_a_restart(tmp_path: Path) -> None:
    def backup(name: str) -> float | None:
        with fencepost.Server(tmp_path / "data", http_address=ANY) as server:
            before = Metrics(server)("fencepost_last_backup_timestamp_seconds")
            command = [
                sys.executable,
                "-m",
                "fencepost",
                "backup",
                str(tmp_path / name),
                "--data",
                str(tmp_path / "data"),
            ]
            assert subprocess.run(command, check=False, capture_output=True).returncode == 0
            while Metrics(server)("fencepost_last_backup_timestamp_seconds") == before:
                pass  # the server hears of it right after the command has ended
            return before

    began = time.time()
    assert backup("first") is None
    assert began - 1 < (backup("second") or 0) <= time.time()


def test_topics_and_groups_beyond_the_limit_are_summed() -> None:
    with fencepost.Server(http_address=ANY, http_max_names=2) as started:
        with fencepost.Admin(started.address) as admin, fencepost.Producer(started.address) as producer:
            for name in "abcd":
                admin.create_topic(name, 3)
                for _ in range(10):
                    producer.send(name, b"x", partition=0)
            producer.flush()
        for group in ("first", "second", "third"):
            commit(started, group, "d", p0=4)
        metrics = Metrics(started)
    records = "kafka_server_brokertopicmetrics_messagesin_total"
    assert [metrics(records, topic=name) for name in ("a", "b", "c", "(other)")] == [10, 10, None, 20]
    assert metrics("kafka_topic_partitions", topic="(other)") == 6
    assert metrics("kafka_topic_partition_current_offset", topic="b", partition="0") == 10
    assert metrics("kafka_topic_partition_current_offset", topic="c", partition="0") is None
    assert metrics("kafka_consumergroup_lag_sum", consumergroup="first", topic="(other)") == 6
    assert metrics("kafka_consumergroup_lag_sum", consumergroup="(other)", topic="(other)") == 6
    assert metrics("fencepost_metrics_partitions_left_out") == 2


def test_a_group_may_have_any_name(server: fencepost.Server) -> None:
    name = 'quoted "\\" and\nbroken'
    with fencepost.Producer(server.address) as producer:
        producer.send("orders", b"x").result()
    commit(server, name, "orders", p0=0)
    labels = {"consumergroup": name, "topic": "orders", "partition": "0"}
    assert Metrics(server)("kafka_consumergroup_lag", **labels) == 1


def test_lag_is_never_negative_while_everybody_writes_and_commits(server: fencepost.Server) -> None:
    topic = "busy"
    with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address, linger=0) as producer:
        admin.create_topic(topic, 1)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": server.address, "group.id": "close-behind"})
        end = 0
        for _ in range(20):
            for _ in range(50):
                end = producer.send(topic, b"x", partition=0).result().offset + 1
            consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, end)], asynchronous=True)
            metrics = Metrics(server)
            labels = {"topic": topic, "partition": "0"}
            at_end = metrics("kafka_topic_partition_current_offset", **labels)
            committed = metrics("kafka_consumergroup_current_offset", consumergroup="close-behind", **labels)
            assert committed is None or at_end is None or committed <= at_end
            assert (metrics("kafka_consumergroup_lag", consumergroup="close-behind", **labels) or 0) >= 0
        consumer.close()
    assert end == 1_000
