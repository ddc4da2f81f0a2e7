"""`fencepost serve`: options become settings, and the two lines that tell where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fencepost.cli import main
from fencepost.server.config.settings import ServerConfig
from fencepost.server.server import OnReady, Ready

pytestmark = pytest.mark.unit


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ServerConfig]:
    """The settings that the server was started with; it stops at once."""
    configs: list[ServerConfig] = []

    def run(
        config: ServerConfig, *, on_ready: OnReady, load: object, may_go_without_http: bool, systemd: object
    ) -> None:
        configs.append(config)
        assert may_go_without_http == (config.http_address == "127.0.0.1:9644")
        http = f"http://{config.http_address}" if config.http_address is not None else None
        on_ready(Ready({listener.name: "127.0.0.1:12345" for listener in config.endpoints}, tmp_path, http))

    monkeypatch.setattr("fencepost.server.server.run", run)
    return configs


def serve(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["serve", *arguments], catch_exceptions=False)


def test_without_options_it_serves_this_machine_and_keeps_what_it_acknowledges(
    served: list[ServerConfig], tmp_path: Path
) -> None:
    result = serve()
    assert result.exit_code == 0
    config = ServerConfig(
        data=Path("fencepost-data"), listen="127.0.0.1:9092", sync="always", http_address="127.0.0.1:9644"
    )
    assert served == [config]
    listening, data, http, stopped = result.stdout.splitlines()
    assert http == "console, health and metrics on http://127.0.0.1:9644"
    assert listening.endswith("listening on 127.0.0.1:12345")
    assert data == f"data in {tmp_path.resolve()} (--sync always: an acknowledged record is on the disk)"
    assert stopped == "fencepost: stopped"


def test_every_option_reaches_its_setting(served: list[ServerConfig], tmp_path: Path) -> None:
    serve(
        *("--data", str(tmp_path), "--listen", "0.0.0.0:1", "--advertise", "log.example:9092", "--sync", "os"),
        *("--insecure", "--partitions", "4", "--no-auto-create", "-X", "max.connections=5", "--http", "0.0.0.0:2"),
    )
    assert served == [
        ServerConfig(
            data=tmp_path,
            listen="0.0.0.0:1",
            advertise="log.example:9092",
            sync="os",
            insecure=True,
            default_partitions=4,
            auto_create_topics=False,
            max_connections=5,
            http_address="0.0.0.0:2",
        )
    ]


def test_an_ephemeral_server_has_no_data_directory_and_says_so(served: list[ServerConfig]) -> None:
    result = serve("--ephemeral")
    assert served[0].data is None
    assert "(temporary)" in result.stdout


def test_a_directory_to_keep_is_refused_for_one_that_keeps_nothing(served: list[ServerConfig], tmp_path: Path) -> None:
    refused = serve("--ephemeral", "-X", f"data={tmp_path}")
    assert refused.exit_code == 2
    assert "--data and --ephemeral cannot be combined" in refused.stderr
    assert served == []


def test_a_number_that_cannot_be_is_called_wrongly(served: list[ServerConfig]) -> None:
    refused = serve("-X", "open_files=0")
    assert (refused.exit_code, refused.stderr) == (2, "fencepost: open_files must be from 1 to 2147483647, not 0\n")
    assert served == []


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", "192.0.2.1:9092", "log.example:9092"])
def test_listening_beyond_loopback_is_refused_unless_it_is_called_insecure(
    served: list[ServerConfig], listen: str
) -> None:
    refused = serve("--listen", listen)
    assert refused.exit_code == 2
    assert "--insecure" in refused.stderr
    assert served == []
    assert serve("--listen", listen, "--insecure").exit_code == 0


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "localhost:0"])
def test_loopback_needs_no_permission(served: list[ServerConfig], listen: str) -> None:
    assert serve("--listen", listen).exit_code == 0


def test_an_address_that_cannot_be_had_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(config: ServerConfig, **_: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("fencepost.server.server.run", run)
    result = serve("--ephemeral", "--listen", "127.0.0.2:1")
    assert result.exit_code == 1
    assert result.stderr == "fencepost: cannot serve on 127.0.0.2:1: Cannot assign requested address\n"


def test_the_http_port_can_be_off(served: list[ServerConfig]) -> None:
    assert "health" not in serve("--no-http").stdout
    assert served[0].http_address is None
    both = serve("--no-http", "--http", "127.0.0.1:0")
    assert (both.exit_code, "cannot be combined" in both.stderr) == (2, True)
