"""A number that the server tells of itself is the same wherever it is told: metrics, HTTP API, page, Kafka's API."""

from __future__ import annotations

import json
import re

import pytest

import fencepost
from tests.support.http_client import ANY, get

pytestmark = pytest.mark.integration


def metric(text: str, name: str, labels: str) -> int:
    [found] = re.findall(rf"^{name}{{{re.escape(labels)}}} (\d+)$", text, re.MULTILINE)
    return int(found)


def test_lags_and_the_sums_of_topics_agree_everywhere() -> None:
    with fencepost.Server(http_address=ANY) as server, fencepost.Admin(server.address) as admin:
        admin.create_topic("orders", 3)
        with fencepost.Producer(server.address) as producer:
            for number in range(1234):
                producer.send("orders", b"x", partition=number % 3)
        admin.commit_group_offsets("billing", "orders", {0: 7, 1: 400, 2: 10_000})
        known = {row.partition: row.lag for row in admin.group_offsets("billing")}
        assert sum(lag or 0 for lag in known.values()) == (412 - 7) + (411 - 400)

        offsets = json.loads(get(f"{server.http}/api/v1/groups/billing/offsets").text)["items"]
        assert {row["partition"]: row["lag"] for row in offsets} == known
        text = get(f"{server.http}/metrics").text
        assert metric(text, "kafka_consumergroup_lag_sum", 'consumergroup="billing",topic="orders"') == 416
        for partition, lag in known.items():
            labels = f'consumergroup="billing",topic="orders",partition="{partition}"'
            assert metric(text, "kafka_consumergroup_lag", labels) == lag
        assert "416" in get(f"{server.http}/groups/billing").text

        partitions = json.loads(get(f"{server.http}/api/v1/topics/orders/partitions").text)["items"]
        size = sum(row["size"] for row in partitions)
        assert metric(text, "fencepost_topic_bytes", 'topic="orders"') == size
        assert metric(text, "kafka_server_brokertopicmetrics_messagesin_total", 'topic="orders"') == 1234
        assert sum(row["end_offset"] - row["start_offset"] for row in partitions) == 1234
        assert "1,234" in get(f"{server.http}/topics/orders").text
