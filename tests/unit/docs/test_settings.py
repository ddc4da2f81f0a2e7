"""Every setting has its place in the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields

import pytest

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.reader import Reader
from fencepost.server.settings import ServerConfig
from fencepost.server.storage.topic_config import KNOWN
from tests.support.pages import ROOT

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("operating.md", [field.name for field in fields(ServerConfig)]),
        ("operating.md", KNOWN),
        ("producer.md", [field.name for field in fields(ProducerOptions)]),
        ("producer.md", inspect.signature(Reader).parameters),
    ],
    ids=["server", "topic", "producer", "reader"],
)
def test_every_setting_is_documented(page: str, names: Iterable[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []
