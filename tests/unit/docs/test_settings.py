"""Every setting has its place in the documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from fencepost.client.produce.options import ProducerOptions
from fencepost.client.reader import Reader
from fencepost.server.config.loading import Sources
from fencepost.server.config.settings import ServerConfig, file_name
from fencepost.server.storage.topic_config import KNOWN
from tests.support.pages import PAGES, ROOT, Block, blocks
from tools.settings_table import PAGE, page

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("configuration.md", [file_name(field.name) for field in fields(ServerConfig) if field.name != "listeners"]),
        ("operating.md", KNOWN),
        ("producer.md", [field.name for field in fields(ProducerOptions)]),
        ("producer.md", inspect.signature(Reader).parameters),
    ],
    ids=["server", "topic", "producer", "reader"],
)
def test_every_setting_is_documented(page: str, names: Iterable[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_tables_of_the_settings_are_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tools.settings_table --write`"


@pytest.mark.parametrize(
    "block",
    [each for page_ in PAGES for each in blocks(page_) if each.language == "toml" and not each.is_executed],
    ids=lambda each: f"{each.page.name}:{each.line}",
)
def test_every_configuration_in_the_documentation_is_right(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(block.text)
    Sources(file, {}, {}).load()
