"""What a user meets first: names at the top level, `help` that lists every setting, and mistakes that get a hint."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
from typing import Any, get_type_hints

import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.producer import ProducerKeywords
from fencepost.client.reader import Reader, ReaderKeywords
from fencepost.core.topic_name import fault_of
from fencepost.errors import ConfigError
from fencepost.server.settings import ServerConfig, ServerKeywords

pytestmark = pytest.mark.unit

NOWHERE = "127.0.0.1:1"
PLAIN: Any = vars(pydoc)["plaintext"]  # which the stubs do not know


@pytest.mark.parametrize(
    "name",
    ["TopicPartition", "Closed", "TimedOut", "Unreachable", "RecordTooLarge", "ConfigError", "ServerError"],
)
def test_the_names_that_the_docs_use_are_at_the_top_level(name: str) -> None:
    assert name in fencepost.__all__
    assert getattr(fencepost, name).__name__ == name


def test_every_public_name_is_listed_once_and_can_be_loaded() -> None:
    assert len(set(fencepost.__all__)) == len(fencepost.__all__)
    for name in fencepost.__all__:
        assert getattr(fencepost, name) is not None


@pytest.mark.parametrize(("public", "options"), [("Producer", ProducerOptions), ("Server", ServerConfig)])
def test_help_lists_every_setting_with_type_default_and_meaning(public: str, options: type[Any]) -> None:
    text = pydoc.render_doc(getattr(fencepost, public), renderer=PLAIN)
    for field in dataclasses.fields(options):
        assert field.metadata.get("meaning"), f"{field.name} has no meaning"
        entry = re.escape(f"{field.name}: {field.type} = {field.default!r}")
        assert re.search(rf"\| +{entry}\n \| +{re.escape(field.metadata['meaning'].split()[0])}", text), field.name


def test_help_of_the_reader_lists_every_argument_with_its_default() -> None:
    text = pydoc.render_doc(fencepost.Reader, renderer=PLAIN)
    for name, argument in inspect.signature(Reader).parameters.items():
        expected = (
            f"{name}: {argument.annotation} = {argument.default!r}" if argument.default is not argument.empty else name
        )
        assert f"|  {expected}" in text, name


@pytest.mark.parametrize(
    ("keywords", "known", "signature"),
    [
        (ProducerKeywords, {field.name for field in dataclasses.fields(ProducerOptions)}, set()),
        (ServerKeywords, {field.name for field in dataclasses.fields(ServerConfig)}, {"data", "listen", "sync"}),
        (
            ReaderKeywords,
            set(inspect.signature(Reader).parameters),
            {"servers", "topics", "start", "stop"},
        ),
    ],
)
def test_typed_keywords_are_the_settings_that_exist(keywords: type[Any], known: set[str], signature: set[str]) -> None:
    assert set(get_type_hints(keywords)) == known - signature
    assert Any not in get_type_hints(keywords).values()


@pytest.mark.parametrize("public", ["Server", "AsyncReader", "AsyncProducer", "Producer"])
def test_no_constructor_takes_keywords_of_any_type(public: str) -> None:
    rest = [
        argument
        for argument in inspect.signature(getattr(fencepost, public)).parameters.values()
        if argument.kind is inspect.Parameter.VAR_KEYWORD
    ]
    assert all("Unpack[" in str(argument.annotation) for argument in rest)


@pytest.mark.parametrize("name", sorted(set(fencepost.__all__) - {"__version__"}))
def test_help_texts_name_no_requirement_numbers(name: str) -> None:
    text = pydoc.render_doc(getattr(fencepost, name), renderer=PLAIN)
    assert not re.findall(r"\b(?:OWN|IDEM|PROD|PIPE)-\d+", text)


def test_a_producer_says_in_its_repr_where_it_writes() -> None:
    producer = fencepost.Producer(NOWHERE, name="billing")
    assert repr(producer) == f"<Producer 'billing' to {NOWHERE}, open>"
    producer.close()
    assert repr(producer) == f"<Producer 'billing' to {NOWHERE}, closed>"


def test_a_server_says_in_its_repr_whether_and_where_it_listens() -> None:
    server = fencepost.Server()
    assert repr(server) == "<Server, not running>"
    with server, fencepost.Admin(server.address) as admin:
        assert repr(server) == f"<Server on {server.address}, data in {server.data}>"
        admin.create_topic("orders")
        with fencepost.Reader(server.address, "orders") as reader:
            assert repr(reader) == f"<Reader of orders on {server.address}, open>"
        assert repr(reader).endswith("closed>")


@pytest.mark.parametrize(
    ("arguments", "settings", "hint"),
    [
        (("http://broker.example:9092",), {}, "expected host:port without http://, for example broker.example:9092"),
        ((), {"bootstrap_servers": NOWHERE}, "the servers are the first argument"),
        (({"bootstrap.servers": NOWHERE},), {}, "from_config"),
        ((NOWHERE,), {"bootstrap.servers": NOWHERE}, "the servers are the first argument"),
        ((NOWHERE,), {"linger.ms": 5}, "from_config"),
        ((NOWHERE,), {"acks": 1}, "expected 'all', 'leader' or 'none'; Kafka's 1 is 'leader' here"),
        ((NOWHERE,), {"acks": "-1"}, "Kafka's -1 is 'all' here"),
        ((NOWHERE,), {"compresion": "lz4"}, "did you mean 'compression'?"),
    ],
)
def test_a_typical_mistake_gets_a_hint(arguments: tuple[Any, ...], settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fencepost.Producer(*arguments, **settings)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_server_setting_is_named_with_the_nearest() -> None:
    wrong: Any = {"max_conections": 5}
    with pytest.raises(ConfigError, match=r"^unknown setting 'max_conections'; did you mean 'max_connections'\?$"):
        fencepost.Server(**wrong)


def test_settings_show_addresses_as_users_write_them() -> None:
    assert ClientSettings.of("a:1, [::1]:2,b").addresses == "a:1,[::1]:2,b:9092"


@pytest.mark.parametrize("name", ["a", "a.b_c-1", "x" * 249])
def test_a_legal_topic_name_has_no_fault(name: str) -> None:
    assert fault_of(name) is None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "must not be empty"),
        ("..", "cannot be called"),
        ("x" * 250, "at most 249"),
        ("a b", "ASCII letters, digits"),
    ],
)
def test_a_fault_of_a_topic_name_is_said(name: str, fault: str) -> None:
    said = fault_of(name)
    assert said is not None
    assert fault in said


def test_a_bad_topic_name_fails_at_the_call_with_the_legal_characters() -> None:
    with fencepost.Producer(NOWHERE) as producer, pytest.raises(ValueError, match="may only have ASCII letters"):
        producer.send("my orders", b"1")
