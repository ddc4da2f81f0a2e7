"""A client of the HTTP port, and the metrics of a server."""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

import fencepost
from fencepost.log.files import OsFiles, Room

ANY = "127.0.0.1:0"


class Page(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]


def get(url: str, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None) -> Page:
    no_proxy = urllib.request.ProxyHandler({})
    opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(urllib.request.Request(url, headers=headers or {}), timeout=30) as answer:
            return Page(answer.status, answer.read().decode(), dict(answer.headers))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Page(refusal.code, refusal.read().decode(), dict(refusal.headers))


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class Metrics:
    def __init__(self, server: fencepost.Server) -> None:
        page = get(f"{server.http}/metrics")
        assert page.status == 200, page
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(page.text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._samples.get((name, frozenset(labels.items())))

    def sum(self, name: str) -> float:
        return sum(value for (known, _), value in self._samples.items() if known == name)


class FullDisk(OsFiles):
    def room(self, path: str) -> Room:
        return super().room(path)._replace(free=0)
