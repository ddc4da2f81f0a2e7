"""Settings from flags, environment, file and defaults: precedence, names, and every mistake with its line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.loading import Sources, WrongConfiguration, name_lines
from fencepost.server.config.settings import ServerConfig, file_name

pytestmark = pytest.mark.unit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def mistakes(file: Path, text: str, environment: dict[str, str] | None = None) -> list[str]:
    """Return the mistakes without the file's path: `LINE: TEXT`."""
    file.write_text(text)
    with pytest.raises(WrongConfiguration) as caught:
        Sources(file, environment or {}, {}).load()
    return [str(mistake).removeprefix(f"{file}").removeprefix(":") for mistake in caught.value.mistakes]


def refusal(sources: Sources) -> str:
    try:
        sources.load()
    except WrongConfiguration as error:
        return str(error)
    return ""


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults(file: Path) -> None:
    file.write_text("max_groups = 1\nmax_topics = 1\nmax_resources = 1")
    environment = {"FENCEPOST_MAX_GROUPS": "2", "FENCEPOST_MAX_TOPICS": "2"}
    config = Sources(file, environment, {"max.groups": "3"}).load()
    assert (config.max_groups, config.max_topics, config.max_resources, config.max_producers) == (3, 2, 1, 100_000)


def test_a_listener_may_come_from_every_source(file: Path) -> None:
    file.write_text("[listeners.inside]\naddress = '127.0.0.1:1'")
    environment = {"FENCEPOST_LISTENERS_SIDE_ADDRESS": "127.0.0.1:2"}
    flags = {"listeners.inside.advertise": "a.example:3", "listeners.other.address": "[::1]:4"}
    assert Sources(file, environment, flags).load().endpoints == (
        ListenerConfig(name="inside", address="127.0.0.1:1", advertise="a.example:3"),
        ListenerConfig(name="side", address="127.0.0.1:2"),
        ListenerConfig(name="other", address="[::1]:4"),
    )


def test_without_listeners_the_address_is_that_of_listen() -> None:
    config = Sources(None, {"FENCEPOST_LISTEN": "127.0.0.1:7"}, {}).load()
    assert config.endpoints == (ListenerConfig(name="default", address="127.0.0.1:7"),)


def test_paths_in_a_file_are_relative_to_it(file: Path) -> None:
    file.write_text("data = 'logs'")
    assert Sources(file, {}, {}).load().data == file.parent / "logs"
    assert Sources(file, {"FENCEPOST_DATA": "logs"}, {}).load().data == Path("logs")


def test_every_mistake_is_named_with_its_line(file: Path) -> None:
    text = """# a comment
sync = "sometimes"
max_conections = 5

max_groups = "many"
open_files = 0

[listeners.inside]
address = "nowhere"
protokol = "plaintext"

[listener.outside]
address = "127.0.0.1:9093"

[oauth]
isuer = "https://id.example"
"""
    assert mistakes(file, text) == [
        "2: sync must be 'always' or 'os', not 'sometimes'",
        "3: unknown setting 'max_conections'; did you mean 'max_connections'?",
        "5: max_groups must be a whole number, not 'many'",
        "6: open_files must be from 1 to 2147483647, not 0",
        "9: listeners.inside.address: address must be HOST:PORT, not 'nowhere'",
        "10: unknown setting 'listeners.inside.protokol'; did you mean 'listeners.inside.protocol'?",
        "12: unknown setting 'listener'; did you mean 'listeners'?",
        "16: unknown setting 'oauth.isuer'; did you mean 'oauth.issuer'?",
    ]


def test_mistakes_that_only_show_together_are_named_beside_all_others(file: Path) -> None:
    """A setting is not called missing because its value is wrong."""
    text = """
sink = 1
group_min_session_timeout_ms = 5
group_max_session_timeout_ms = "four"

[listeners.a]
address = "127.0.0.1:1"
protocol = "sasl_ssl"
mechanisms = ["OAUTHBEARER"]
client_certificate = "required"

[listeners.b]
address = "127.0.0.1:2"
protocol = "ssl"
certificate = 5

[listeners.c]
address = "0.0.0.0:3"
protocol = "sasl_plaintext"
mechanisms = ["OAUTHBEARER"]

[oauth]
audience = "fencepost"
"""
    assert [found.partition("; require")[0] for found in mistakes(file, text)] == [
        "2: unknown setting 'sink'",
        "4: group_max_session_timeout_ms must be a whole number, not 'four'",
        "15: listeners.b.certificate must be a string, not 5",
        "8: listeners.a.protocol is 'sasl_ssl', which needs a certificate",
        "10: listeners.a.client_certificate is 'required', which needs client_ca",
        "18: refusing to listen on 0.0.0.0: anyone who can reach it could read and write everything",
        "oauth.issuer is missing: OAUTHBEARER needs it",
        "oauth.jwks is missing: OAUTHBEARER needs it",
    ]


def test_keys_of_tokens_are_a_file_beside_the_configuration_or_an_address(file: Path) -> None:
    takes_tokens = (
        "[listeners.a]\naddress = '127.0.0.1:1'\nprotocol = 'sasl_plaintext'\nmechanisms = ['OAUTHBEARER']\n"
        "[oauth]\nissuer = 'https://id.example'\naudience = 'fencepost'\njwks = "
    )
    [missing] = mistakes(file, takes_tokens + "'keys/jwks.json'")
    assert missing.startswith(f"8: cannot read the keys in oauth.jwks={file.parent / 'keys/jwks.json'}: ")
    (file.parent / "keys").mkdir()
    (file.parent / "keys" / "jwks.json").write_text('{"keys": []}')
    [empty] = mistakes(file, takes_tokens + "'keys/jwks.json'")
    assert empty.startswith("8: cannot read the keys in oauth.jwks=")
    file.write_text(takes_tokens + "'https://id.example/keys'")
    assert Sources(file, {}, {}).load().oauth_jwks == "https://id.example/keys"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a = [\n", "1: Invalid value"),
        ("sync = 'os'\nsync = 'os'", "2: Cannot overwrite a value"),
        ("sync = os", "1: Invalid value"),
        ("insecure = 1", "1: insecure must be true or false, not 1"),
        ("data = 5", "1: data must be a string, not 5"),
        ("\n[listeners.Outside]\naddress = '127.0.0.1:1'", "3: a listener's name must be"),
        ("[listeners.a]\n", "1: listeners.a needs an address"),
        ("[listeners.a]\nadvertise = 'a.example:1'", "2: listeners.a needs an address"),
        ("listen = '127.0.0.1:1'\n[listeners.a]\naddress = '127.0.0.1:2'", "1: listen and advertise cannot be"),
        ("[listeners.a]\naddress = '0.0.0.0:1'", "2: refusing to listen on 0.0.0.0"),
        ("max_groups = 1\nlisten = '0.0.0.0:1'", "2: refusing to listen on 0.0.0.0"),
        (
            "max_groups = 1\ngroup_min_session_timeout_ms = 5\ngroup_max_session_timeout_ms = 4",
            "2: group_min_session_timeout_ms=5 is above",
        ),
        ("authorization.super_users = [\n'User:a',\n5]", "1: authorization.super_users must be a list of strings"),
        ("authorization.super_users = 'User:a'", "1: authorization.super_users must be a list of strings"),
        (
            "[listeners.a]\naddress = '127.0.0.1:1'\nmechanisms = ['GSSAPI']",
            "3: listeners.a.mechanisms must name some of ",
        ),
        (
            "[listeners.a]\naddress = '127.0.0.1:1'\nprotocol = 'sasl_ssl'",
            "3: listeners.a.protocol is 'sasl_ssl', which needs a certificate",
        ),
    ],
)
def test_a_mistake(file: Path, text: str, found: str) -> None:
    only, *others = mistakes(file, text)
    assert only.startswith(found)
    assert others == []


def test_a_missing_file_is_a_mistake(file: Path) -> None:
    with pytest.raises(WrongConfiguration, match=r"cannot read .*: No such file"):
        Sources(file, {}, {}).load()


def test_mistakes_in_the_environment_name_the_variable(file: Path) -> None:
    environment = {"FENCEPOST_MAX_GROUPS": "many", "FENCEPOST_LISTENERS_A_ADRESS": "127.0.0.1:1"}
    assert mistakes(file, "", environment) == [
        "FENCEPOST_MAX_GROUPS: max_groups must be a whole number, not 'many'",
        "unknown setting 'FENCEPOST_LISTENERS_A_ADRESS'; did you mean 'FENCEPOST_LISTENERS_A_ADDRESS'?",
    ]


def test_a_variable_that_is_nearly_a_setting_is_told_but_others_are_left_alone() -> None:
    environment = {"FENCEPOST_MAX_CONECTIONS": "5", "FENCEPOST_SERVERS": "x", "FENCEPOST_SERVICE_HOST": "10.0.0.1"}
    (only,) = Sources(None, environment, {}).misspelled_variables()
    assert only.endswith("FENCEPOST_MAX_CONECTIONS; did you mean FENCEPOST_MAX_CONNECTIONS?")


def test_every_name_is_known_in_every_source(file: Path) -> None:
    """A wrong value is refused for its value, never for its name."""
    names = [file_name(field.name) for field in fields(ServerConfig) if field.name != "listeners"]
    for concrete in [
        *names,
        *(f"listeners.a.{field.name}" for field in fields(ListenerConfig) if field.name != "name"),
    ]:
        variable = "FENCEPOST_" + concrete.replace(".", "_").upper()
        for sources in (
            Sources(None, {variable: "\0"}, {}),
            Sources(None, {}, {concrete: "\0"}),
        ):
            assert "unknown" not in refusal(sources)
        for found in mistakes(file, f"{concrete} = 1979-05-27"):
            assert "unknown" not in found


def test_lines_of_statements_over_several_lines() -> None:
    text = """
a = [
  1,  # a comment = 5
]

b = '''
c = 5
'''
[t]
# d = 1
d.e = { f = 1 }
"""
    assert name_lines(text) == {
        ("a",): 2,
        ("b",): 6,
        ("t",): 9,
        ("t", "d"): 11,
        ("t", "d", "e"): 11,
        ("t", "d", "e", "f"): 11,
    }
