"""`fencepost generate`: every metric and label that the dashboard and the alerts name is one that a real server has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import fencepost
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, Progress
from fencepost.errors import FencepostError
from fencepost.server.config.listener import ListenerConfig
from tests.support.certificates import make
from tests.support.http_client import ANY, FullDisk, get
from tests.support.promql import read_query

pytestmark = pytest.mark.integration

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every series."""


def generate(*arguments: str) -> str:
    command = [sys.executable, "-m", "fencepost", "generate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def used_server(folder: Path) -> str:
    """Let a server have one of everything, and scrape it."""
    listeners = (
        ListenerConfig(name="plain", address=ANY),
        ListenerConfig(name="secure", address=ANY, protocol="ssl", certificate=make(folder).server),
    )
    with (
        fencepost.Server(listeners=listeners, http_address=ANY) as server,
        fencepost.Admin(server.address) as admin,
        fencepost.Producer(server.address) as owner,
        fencepost.Producer(server.address) as stranger,
    ):
        admin.create_topic("journal", 1, configs={"fencepost.writer.group": "writers"})
        owner.own("writers", ["journal-0"], generation=0)
        owner.send("journal", b"x", partition=0).result()
        with pytest.raises(FencepostError):
            stranger.send("journal", b"x", partition=0).result()
        sink = confluent_kafka.Producer({"bootstrap.servers": server.address, "transactional.id": "sink"})
        sink.init_transactions()
        sink.begin_transaction()
        progress = Progress("query", 1, 1, "token", "host", 1, 1)
        sink.produce(PROGRESS_TOPIC_PREFIX + "x", progress.encode(), key=PROGRESS_KEY)
        sink.commit_transaction()
        admin.commit_group_offsets("readers", "journal", {0: 0})
        return get(f"{server.http}/metrics").text


def broken_server() -> str:
    """Scrape a server with a failing chore."""
    with fencepost.Server(http_address=ANY, files=FullDisk()) as server:
        return get(f"{server.http}/metrics").text


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the labels of every series that real servers have, by the name of the metric."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in (used_server(tmp_path_factory.mktemp("certificates")), broken_server()):
        for family in text_string_to_metric_families(text):
            found[family.name]  # also one without series, such as the time of a backup
            for sample in family.samples:
                found[sample.name] |= set(sample.labels)
    found["up"] = set()  # Prometheus' own
    return found


def dashboard_queries(dashboard: dict[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def check(text: str, known: dict[str, set[str]]) -> None:
    query = read_query(text)
    for selector in query.selectors:
        assert selector.metric in known, f"{selector.metric} in {text}"
        assert selector.labels <= known[selector.metric] | OF_PROMETHEUS, text
        assert query.grouped <= known[selector.metric] | OF_PROMETHEUS, text


def test_every_query_of_the_dashboard_has_series(known: dict[str, set[str]]) -> None:
    dashboard = json.loads(generate("grafana-dashboard"))
    queries = list(dashboard_queries(dashboard))
    assert len(queries) > 40
    for query in queries:
        check(query, known)


def test_every_legend_of_the_dashboard_names_labels_of_its_query(known: dict[str, set[str]]) -> None:
    for panel in json.loads(generate("grafana-dashboard"))["panels"]:
        for target in panel.get("targets", ()):
            query = read_query(target["expr"])
            labels = query.grouped or known[query.selectors[0].metric] | OF_PROMETHEUS
            named = {part.partition("}}")[0] for part in target["legendFormat"].split("{{")[1:]}
            assert named <= labels, target


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(generate("grafana-dashboard"))["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_alert_has_series_and_says_what_to_do(known: dict[str, set[str]]) -> None:
    rules = yaml.safe_load(generate("alerts"))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    for rule in rules:
        check(rule["expr"], known)
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["description"]
        query = read_query(rule["expr"])
        labels = query.grouped or known[query.selectors[0].metric] | OF_PROMETHEUS
        named = {part.split(" ")[0] for part in rule["annotations"]["summary"].split("$labels.")[1:]}
        assert named <= labels, rule


def test_the_configuration_scrapes_the_given_servers() -> None:
    [job] = yaml.safe_load(generate("prometheus-config"))["scrape_configs"]
    assert (job["job_name"], job["static_configs"]) == ("fencepost", [{"targets": ["127.0.0.1:9644"]}])
    text = generate("prometheus-config", "--target", "a:1", "--target", "b:2", "--https", "--user", "prometheus: x")
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job["scheme"] == "https"
    assert job["basic_auth"]["username"] == "prometheus: x"
    assert job["static_configs"] == [{"targets": ["a:1", "b:2"]}]


@pytest.mark.parametrize(
    "wrong", ["fencepost_no_such_metric", "sum by (nothing) (fencepost_producers)", 'fencepost_producers{nobody="x"}']
)
def test_the_check_finds_what_is_wrong(known: dict[str, set[str]], wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(wrong, known)
