"""Where a command finds its servers and settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.cli.options import ClusterTarget, pairs, read_config
from fencepost.errors import ConfigError

pytestmark = pytest.mark.unit


def servers(target: ClusterTarget) -> str:
    return ",".join(str(address) for address in target.settings().servers)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text("# a comment\n! another\n\nmetadata.broker.list = file:1\nclient.id=me=you\n", encoding="utf-8")
    return path


def test_the_command_line_comes_before_x_before_the_file_before_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCEPOST_SERVERS", raising=False)
    assert servers(ClusterTarget(None, None, (), as_json=False)) == "127.0.0.1:9092"
    monkeypatch.setenv("FENCEPOST_SERVERS", "env:1")
    assert servers(ClusterTarget(None, None, (), as_json=False)) == "env:1"
    assert servers(ClusterTarget(None, config, (), as_json=False)) == "file:1"
    assert servers(ClusterTarget(None, config, ("bootstrap.servers=x:1",), as_json=False)) == "x:1"
    assert servers(ClusterTarget("line:1", config, ("bootstrap.servers=x:1",), as_json=False)) == "line:1"


def test_a_config_file_has_comments_and_values_with_equals_signs(config: Path) -> None:
    assert read_config(config) == {"metadata.broker.list": "file:1", "client.id": "me=you"}


def test_a_config_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    """As people have it for Kafka's tools: a JAAS entry over several lines, quotes and backslashes escaped."""
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=PLAIN\n"
        "sasl.jaas.config=a.PlainLoginModule required \\\n"
        '    # username="not a comment, but no option either"\\\n'
        "    ;\n"
        "! end\n"
        "ssl.key.password=a\\\\b\\=c\\\\\n"
        "client.id=last\\",
        encoding="utf-8",
    )
    assert read_config(path) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'a.PlainLoginModule required # username="not a comment, but no option either";',
        "ssl.key.password": "a\\b=c\\",
        "client.id": "last",
    }


def test_a_line_without_an_equals_sign_is_shown_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"client\.properties takes NAME=VALUE, not 'bootstrap\.servers'"):
        read_config(path)


@pytest.mark.parametrize("text", ["x", "=1", " =1"])
def test_a_setting_is_name_and_value(text: str) -> None:
    with pytest.raises(ConfigError, match="-X takes NAME=VALUE"):
        pairs([text], "-X")
