"""What a user meets first: names at the top level, `help` that lists every setting, and mistakes that get a hint."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NewType, get_type_hints

import pytest

import fencepost
from fencepost import types
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.processor import Processor, ProcessorKeywords
from fencepost.client.produce.options import ProducerOptions
from fencepost.client.producer import ProducerKeywords
from fencepost.client.reader import Reader, ReaderKeywords
from fencepost.errors import ConfigError
from fencepost.server.config.settings import ServerConfig, ServerKeywords
from fencepost.types import fault_of_topic_name

pytestmark = pytest.mark.unit

NOWHERE = "127.0.0.1:1"
PLAIN: Any = vars(pydoc)["plaintext"]  # which the stubs do not know


@pytest.mark.parametrize(
    "name",
    [
        "TopicPartition",
        "ReadRecord",
        "Closed",
        "TimedOut",
        "Unreachable",
        "RecordTooLarge",
        "ConfigError",
        "ServerError",
    ],
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


@pytest.mark.parametrize("public", [Reader, Processor])
def test_help_lists_every_argument_with_its_default(public: type[Any]) -> None:
    text = pydoc.render_doc(public, renderer=PLAIN)
    for name, argument in inspect.signature(public).parameters.items():
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
        (
            ProcessorKeywords,
            set(inspect.signature(Processor).parameters),
            {"servers", "topics", "group", "start", "stop"},
        ),
    ],
)
def test_typed_keywords_are_the_settings_that_exist(keywords: type[Any], known: set[str], signature: set[str]) -> None:
    assert set(get_type_hints(keywords)) == known - signature
    assert Any not in get_type_hints(keywords).values()


@pytest.mark.parametrize("public", ["Server", "AsyncReader", "AsyncProducer", "Producer", "AsyncProcessor"])
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


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda **wrong: fencepost.Reader(NOWHERE, "t", **wrong), "'strat'; did you mean 'start'?"),
        (lambda **wrong: fencepost.AsyncReader(NOWHERE, "t", **wrong), "'strat'; did you mean 'start'?"),
        (lambda **wrong: fencepost.Reader.from_config({}, "t", **wrong), "'strat'; did you mean 'start'?"),
        (lambda **wrong: fencepost.AsyncReader.from_config({}, "t", **wrong), "'strat'; did you mean 'start'?"),
        (lambda **wrong: fencepost.AsyncProducer(NOWHERE, **wrong), "'compresion'; did you mean 'compression'?"),
        (lambda **wrong: fencepost.Processor(NOWHERE, "t", group="g", **wrong), "'retrys'; did you mean 'retries'?"),
        (
            lambda **wrong: fencepost.AsyncProcessor(NOWHERE, "t", group="g", **wrong),
            "'retrys'; did you mean 'retries'?",
        ),
        (lambda **wrong: fencepost.standby(NOWHERE, "g", ["r"], **wrong), "'sesion'; did you mean 'session'?"),
        (lambda **wrong: fencepost.hold(NOWHERE, "g", ["r"], **wrong), "'sesion'; did you mean 'session'?"),
        (lambda **wrong: fencepost.Admin(NOWHERE, **wrong), "'client_id'"),
        (lambda **wrong: fencepost.Reader(topics="t", **wrong), "'bootstrap_servers'; the servers are the first"),
        (lambda **wrong: fencepost.Reader(NOWHERE, "t", **wrong), "'group.id'; Reader.from_config takes a dict"),
    ],
)
def test_an_unknown_keyword_is_named_with_the_nearest_at_the_call(call: Callable[..., object], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(**{hint.split("'")[1]: 1})
    assert f"has no setting {hint}" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: fencepost.Processor(NOWHERE, "t"), "Processor needs group: Processor(servers, topics, group=…)"),  # type: ignore[call-arg]
        (lambda: fencepost.Processor(group="g"), "Processor needs servers and topics: "),  # type: ignore[call-arg]
        (lambda: fencepost.AsyncProcessor(NOWHERE, "t"), "AsyncProcessor needs group: "),  # type: ignore[call-arg]
        (lambda: fencepost.Reader(NOWHERE), "Reader needs topics: Reader(servers, topics)"),  # type: ignore[call-arg]
        (lambda: fencepost.AsyncReader(NOWHERE), "AsyncReader needs topics: "),  # type: ignore[call-arg]
    ],
)
def test_a_missing_argument_is_named_and_the_call_is_shown(call: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert why in str(caught.value)


def test_every_client_takes_a_dict_with_kafkas_names() -> None:
    """At an address where nobody listens: that is what is said, and not that a name is unknown."""
    config = {"bootstrap.servers": NOWHERE, "client.id": "me", "request.timeout.ms": 100, "retry.backoff.ms": 10}
    fencepost.AsyncProducer.from_config({**config, "linger.ms": 5}, name="me")
    fencepost.AsyncReader.from_config({**config, "group.id": "g"}, "t", stop="latest")
    both = {**config, "group.id": "g", "auto.offset.reset": "latest", "linger.ms": 5, "acks": "all"}
    fencepost.AsyncProcessor.from_config({**both, "isolation.level": "read_committed"}, "t", retries=1)
    with pytest.raises(fencepost.Unreachable, match=NOWHERE):
        fencepost.Processor.from_config(both, "t")
    fencepost.Standby.from_config({**config, "linger.ms": 5}, "g", ["r"], session=5, name="me")
    with fencepost.Admin.from_config(config) as admin:
        assert (admin.settings.addresses, admin.settings.client_id) == (NOWHERE, "me")
    with pytest.raises(fencepost.Unreachable, match=NOWHERE):
        fencepost.Hold.from_config(config, "g", ["r"], wait=True)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fencepost.AsyncProducer.from_config, "'sasl.usrname'; did you mean 'sasl.username'?"),
        (lambda config: fencepost.AsyncReader.from_config(config, "t"), "linger.ms is not supported (it is for prod"),
        (lambda config: fencepost.Processor.from_config(config, "t", group="g"), "'sasl.usrname'; did you mean"),
        (lambda config: fencepost.Processor.from_config(config, "t", group="g"), "max.poll.records is not supported"),
        (fencepost.Admin.from_config, "linger.ms is not supported (it is for producers)"),
        (fencepost.Admin.from_config, "group.id is not supported (it is for consumers)"),
        (lambda config: fencepost.Hold.from_config(config, "g", ["r"]), "group.id is not supported (it is for"),
        (lambda config: fencepost.Standby.from_config(config, "g", ["r"]), "group.id is not supported (it is for"),
    ],
)
def test_a_name_that_a_client_cannot_honour_is_refused_when_it_is_made(
    make: Callable[[dict[str, object]], object], why: str
) -> None:
    name = why.split("'")[1] if why.startswith("'") else why.split(maxsplit=1)[0]
    with pytest.raises(ConfigError) as caught:
        make({name: "1"})
    assert why in str(caught.value)


def test_callers_pass_plain_numbers() -> None:
    """A caller has ints: an argument of a type like `Offset`, which is not exported, would fail every type check."""
    numbers = {name for name, kind in vars(types).items() if isinstance(kind, NewType)}
    assert "Offset" in numbers
    for called, name, hint in public_arguments():
        found = re.findall(r"\b\w+\b(?!\[)", hint)  # `Sequence[…]` is Python's
        assert not numbers & set(found), f"{called} takes {name}: {hint}"


def public_arguments() -> Iterator[tuple[str, str, str]]:
    for name in fencepost.__all__:
        public = getattr(fencepost, name)
        members = inspect.getmembers(public) if inspect.isclass(public) else [("", public)]
        for member, function in members:
            if (inspect.isfunction(function) or inspect.ismethod(function)) and not member.startswith("_"):
                for at, argument in inspect.signature(function).parameters.items():
                    yield f"{name}.{member}", at, str(argument.annotation)


@pytest.mark.parametrize("seconds", [10**9, int(time.time()), 10**10 - 1], ids=["2001", "now", "2286"])
def test_a_timestamp_in_seconds_is_refused(seconds: int) -> None:
    """As milliseconds it would be in 1970, and retention would delete the record at once."""
    with fencepost.Producer(NOWHERE) as producer, pytest.raises(ValueError, match="looks like seconds: multiply it by"):
        producer.send("orders", b"1", timestamp=seconds)


def test_a_misspelt_server_setting_is_named_with_the_nearest() -> None:
    wrong: Any = {"max_conections": 5}
    with pytest.raises(ConfigError, match=r"^unknown setting 'max_conections'; did you mean 'max_connections'\?$"):
        fencepost.Server(**wrong)


def test_settings_show_addresses_as_users_write_them() -> None:
    assert ClientSettings.of("a:1, [::1]:2,b").addresses == "a:1,[::1]:2,b:9092"


@pytest.mark.parametrize("name", ["a", "a.b_c-1", "x" * 249])
def test_a_legal_topic_name_has_no_fault(name: str) -> None:
    assert fault_of_topic_name(name) is None


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
    said = fault_of_topic_name(name)
    assert said is not None
    assert fault in said


def test_a_bad_topic_name_fails_at_the_call_with_the_legal_characters() -> None:
    with fencepost.Producer(NOWHERE) as producer, pytest.raises(ValueError, match="may only have ASCII letters"):
        producer.send("my orders", b"1")
