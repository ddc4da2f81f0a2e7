"""Settings by librdkafka's and Java's names, and the field that each one sets.

There is one table per kind of client. An unknown name is an error that suggests the nearest one. A setting that
fencepost cannot honour is an error, too, because ignoring it silently would be worse. Values may be text, as in files,
or Python values: numbers, booleans, functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.client.cluster.addresses import DEFAULT_SERVERS, parse_servers
from fencepost.client.cluster.checks import nearest
from fencepost.client.cluster.security import Sasl, Security, Tls, Token
from fencepost.errors import ConfigError
from fencepost.types import CommittedElse

Config: TypeAlias = Mapping[str, object]


class Setting(NamedTuple):
    field: str
    parse: Callable[[str, object], Any]


# --- values ---


def _text(_name: str, value: object) -> str:
    return str(value)


def _number(what: str, lowest: int, name: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,15}", text) or int(text) < lowest:
        raise ConfigError(f"{name} must be {what}, not {value!r}")
    return int(text)


_milliseconds_int: Final = partial(_number, "a positive number of milliseconds", 1)
_count: Final = partial(_number, "a positive number", 1)
_bytes: Final = partial(_number, "a positive number of bytes", 1)


def _milliseconds(name: str, value: object) -> float:
    return _milliseconds_int(name, value) / 1000


def _some_milliseconds(name: str, value: object) -> float:
    """Parse milliseconds that may be zero or a fraction, as librdkafka's linger may."""
    try:
        amount = float(str(value))
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ConfigError(f"{name} must be a number of milliseconds, not {value!r}")
    return amount / 1000


def _kibibytes(name: str, value: object) -> int:
    return _count(name, value) * 1024


def _truth(name: str, value: object) -> bool:
    word = str(value).strip().lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not {value!r}")
    return word == "true"


def _only(*accepted: str, because: str) -> Callable[[str, object], None]:
    """Parse a setting that has only one possible value: accept that value, reject any other."""

    def parse(name: str, value: object) -> None:
        if str(value).strip().lower() not in accepted:
            raise ConfigError(f"{name}={value} is not supported: {because}")

    return parse


def _one_of(meanings: Mapping[str, Any]) -> Callable[[str, object], Any]:
    def parse(name: str, value: object) -> Any:
        word = str(value).strip().lower()
        if word not in meanings:
            raise ConfigError(f"{name} must be one of {', '.join(known for known in meanings if known)}, not {value}")
        return meanings[word]

    return parse


# --- every client ---

_NOTHING: Final = ""
"""The field of a name that is accepted and sets nothing."""

_CLIENT: Final[dict[str, Setting]] = {
    "bootstrap.servers": Setting("servers", lambda _, value: parse_servers(str(value))),
    "metadata.broker.list": Setting("servers", lambda _, value: parse_servers(str(value))),
    "client.id": Setting("client_id", _text),
    "socket.timeout.ms": Setting("request_timeout", _milliseconds),
    "request.timeout.ms": Setting("request_timeout", _milliseconds),
    "default.api.timeout.ms": Setting("request_timeout", _milliseconds),
    "socket.connection.setup.timeout.ms": Setting("connect_timeout", _milliseconds),
    "retry.backoff.ms": Setting("retry_backoff", _milliseconds),
    "fencepost.replication.factor": Setting("replication", _count),
}

_PROTOCOLS: Final = {
    "plaintext": (False, False),
    "ssl": (True, False),
    "sasl_plaintext": (False, True),
    "sasl_ssl": (True, True),
}
_PEM: Final = _only("pem", because="certificates and keys are read from PEM files")

_TLS: Final[dict[str, Setting]] = {
    "ssl.ca.location": Setting("ca_file", _text),
    "ssl.truststore.location": Setting("ca_file", _text),
    "ssl.ca.pem": Setting("ca_text", _text),
    "ssl.truststore.certificates": Setting("ca_text", _text),
    "ssl.certificate.location": Setting("certificate_file", _text),
    "ssl.keystore.location": Setting("certificate_file", _text),
    "ssl.key.location": Setting("key_file", _text),
    "ssl.key.password": Setting("key_password", _text),
    "ssl.truststore.type": Setting(_NOTHING, _PEM),
    "ssl.keystore.type": Setting(_NOTHING, _PEM),
    "ssl.endpoint.identification.algorithm": Setting(
        "check_hostname", _one_of({"https": True, "none": False, "": False})
    ),
}


def _mechanism(_name: str, value: object) -> str:
    return str(value).strip().upper()


def _confluent_token(_name: str, value: object) -> Token:
    if not callable(value):
        raise ConfigError("oauth_cb must be a function that returns a token")
    return partial(_take_token, value)


def _take_token(function: Callable[[str], Any]) -> str:
    """Return the token of a confluent-kafka function: it takes `sasl.oauthbearer.config`, returns (token, expiry)."""
    answer = function("")
    token: str = answer[0] if isinstance(answer, tuple) else answer
    return token


_SASL: Final[dict[str, Setting]] = {
    "sasl.mechanism": Setting("mechanism", _mechanism),
    "sasl.mechanisms": Setting("mechanism", _mechanism),
    "sasl.username": Setting("username", _text),
    "sasl.password": Setting("password", _text),
    "sasl.jaas.config": Setting("jaas", lambda _, value: parse_jaas(str(value))),
    "oauth_cb": Setting("token", _confluent_token),
}
_SECURITY: Final[dict[str, Setting]] = {
    "security.protocol": Setting("protocol", _one_of(_PROTOCOLS)),
    **_TLS,
    **_SASL,
}


CLIENT_NAMES: Final = frozenset((*_CLIENT, *_SECURITY))
"""Names that every client accepts."""


def client_fields(config: Config, *, default_servers: str) -> dict[str, Any]:
    """Return the fields of `ClientSettings` that `config` sets."""
    others = {**_FOR_CONSUMERS, **_FOR_PRODUCERS}
    return _client_fields(config, _take(config, {**_CLIENT, **_SECURITY}, others), default_servers)


def _client_fields(config: Config, given: Mapping[str, Any], default_servers: str) -> dict[str, Any]:
    servers = given.get("servers") or parse_servers(default_servers)
    return {"servers": servers, **_fields_of(_CLIENT, given), "security": _security(config, given)}


def _security(config: Config, given: Mapping[str, Any]) -> Security:
    with_tls, with_sasl = given.get("protocol", _PROTOCOLS["plaintext"])
    for wanted, names, word in ((with_tls, _TLS, "SSL"), (with_sasl, _SASL, "SASL")):
        stray = next((name for name in config if name in names), None)
        if stray is not None and not wanted:
            # The user believes the connection is protected, and it is not.
            protocols = [protocol.upper() for protocol in _PROTOCOLS if word.lower() in protocol.split("_")]
            now = str(config.get("security.protocol", "PLAINTEXT")).upper()
            raise ConfigError(f"{stray} has no effect with security.protocol={now}: set it to {' or '.join(protocols)}")
    tls = Tls(**_fields_of(_TLS, given)) if with_tls else None
    return Security(tls, _sasl(_fields_of(_SASL, given)) if with_sasl else None)


def _sasl(given: dict[str, Any]) -> Sasl:
    if "mechanism" not in given:
        raise ConfigError("sasl.mechanism is missing: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
    jaas: Jaas | None = given.pop("jaas", None)
    if jaas is not None:
        if given["mechanism"] not in jaas.mechanisms:
            raise ConfigError(f"sasl.jaas.config names {jaas.module}, which is not for {given['mechanism']}")
        for field in ("username", "password"):
            if field in jaas.options:
                given.setdefault(field, jaas.options[field])
    return Sasl(**given)


# --- JAAS: `module flag name="value" …;` ---


class Jaas(NamedTuple):
    module: str
    mechanisms: tuple[str, ...]
    options: Mapping[str, str]


_JAAS_MODULES: Final = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
_JAAS_ENTRY: Final = re.compile(
    r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL | re.IGNORECASE
)
_JAAS_OPTION: Final = re.compile(
    r"""\s*([\w.$-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))(?=\s|$)""", re.DOTALL
)
_JAAS_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def parse_jaas(text: str) -> Jaas:
    """Parse one entry of a JAAS file, as Java's clients do. Errors never contain the password."""
    entry = _JAAS_ENTRY.fullmatch(text)
    if entry is None:
        raise ConfigError('sasl.jaas.config must read: MODULE required username="…" password="…";')
    module, rest = entry[1].rpartition(".")[2], entry[3]
    if module not in _JAAS_MODULES:
        raise ConfigError(f"sasl.jaas.config names {module}: expected one of {', '.join(_JAAS_MODULES)}")
    options: dict[str, str] = {}
    at = 0
    while rest[at:].strip():
        option = _JAAS_OPTION.match(rest, at)
        if option is None:
            raise ConfigError(f'sasl.jaas.config: expected NAME="VALUE" after {module}; {len(options)} were found')
        name, double, single, bare = option.groups()
        quoted = double if double is not None else single
        options[name] = bare if quoted is None else _unescaped(quoted)
        at = option.end()
    return Jaas(module, _JAAS_MODULES[module], options)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _JAAS_ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL)


# --- producers ---


def _codec(_name: str, value: object) -> str:
    return str(value).strip().lower()


def _acks(name: str, value: object) -> str:
    found: str = _one_of({"all": "all", "-1": "all", "1": "leader", "0": "none"})(name, value)
    return found


_PRODUCER: Final[dict[str, Setting]] = {
    "acks": Setting("acks", _acks),
    "request.required.acks": Setting("acks", _acks),
    "linger.ms": Setting("linger", _some_milliseconds),
    "queue.buffering.max.ms": Setting("linger", _some_milliseconds),
    "batch.size": Setting("batch_size", _bytes),
    "buffer.memory": Setting("buffer_memory", _bytes),
    "queue.buffering.max.kbytes": Setting("buffer_memory", _kibibytes),
    "max.block.ms": Setting("block_timeout", _milliseconds),
    "max.request.size": Setting("max_request_size", _bytes),
    "message.max.bytes": Setting("max_request_size", _bytes),
    "compression.type": Setting("compression", _codec),
    "compression.codec": Setting("compression", _codec),
    "compression.level": Setting("compression_level", partial(_number, "a level", -(1 << 17))),
    "enable.idempotence": Setting("idempotent", _truth),
    "transactional.id": Setting("name", _text),
    "transaction.timeout.ms": Setting("transaction_timeout", _milliseconds),
    "delivery.timeout.ms": Setting("delivery_timeout", _milliseconds),
    "message.timeout.ms": Setting("delivery_timeout", _milliseconds),
    "request.timeout.ms": Setting("request_timeout", _milliseconds),
    "retry.backoff.ms": Setting("retry_backoff", _milliseconds),
    "metadata.max.age.ms": Setting("metadata_max_age", _milliseconds),
    "allow.auto.create.topics": Setting("allow_topic_creation", _truth),
    "partitioner": Setting(_NOTHING, _only("murmur2", "murmur2_random", because="murmur2 of the key, or a function")),
}
_PRODUCER_HAS_NONE: Final = {
    "retries": "a record is retried until delivery.timeout.ms",
    "message.send.max.retries": "a record is retried until delivery.timeout.ms",
    "max.in.flight.requests.per.connection": "the number of requests in flight adapts, and order is always kept",
    "max.in.flight": "the number of requests in flight adapts, and order is always kept",
    "batch.num.messages": "batches are bounded by bytes, batch.size",
    "queue.buffering.max.messages": "the buffer is bounded by bytes, buffer.memory",
    "key.serializer": "give Producer the argument key_serializer",
    "value.serializer": "give Producer the argument value_serializer",
}


PRODUCER_NAMES: Final = frozenset((*_PRODUCER, *_PRODUCER_HAS_NONE))
"""Names that a producer knows; other clients accept only those that are in CLIENT_NAMES, too."""


def producer_fields(config: Config, *, default_servers: str = DEFAULT_SERVERS) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `ClientSettings`, and the keywords for `Producer`."""
    given = _take(config, {**_CLIENT, **_SECURITY, **_PRODUCER}, {**_FOR_CONSUMERS, **_PRODUCER_HAS_NONE})
    return _client_fields(config, given, default_servers), _fields_of(_PRODUCER, given)


# --- readers ---

_READER: Final[dict[str, Setting]] = {
    "group.id": Setting("group", _text),
    "auto.offset.reset": Setting(
        "start",
        _one_of(
            {
                "earliest": "earliest",
                "latest": "latest",
                "smallest": "earliest",
                "largest": "latest",
                "beginning": "earliest",
                "end": "latest",
            }
        ),
    ),
    "isolation.level": Setting("read_committed", _one_of({"read_committed": True, "read_uncommitted": False})),
    "max.partition.fetch.bytes": Setting("partition_bytes", _bytes),
    "fetch.message.max.bytes": Setting("partition_bytes", _bytes),
    "fetch.max.wait.ms": Setting("max_wait", _some_milliseconds),
    "fetch.wait.max.ms": Setting("max_wait", _some_milliseconds),
    "queued.max.messages.kbytes": Setting("prefetch_bytes", _kibibytes),
    "group.instance.id": Setting("member", _text),
    "group.protocol": Setting("group_protocol", _one_of({"consumer": "consumer", "classic": "cooperative"})),
    "max.poll.interval.ms": Setting("processing_timeout", _milliseconds),
    "session.timeout.ms": Setting("session_timeout", _milliseconds),
    "metadata.max.age.ms": Setting("metadata_max_age", _milliseconds),
    "enable.auto.commit": Setting(_NOTHING, _only("false", because="a reader stores offsets when `commit` is called")),
    "check.crcs": Setting(_NOTHING, _only("true", because="checksums are always checked")),
}
_READER_HAS_NONE: Final = {
    "auto.commit.interval.ms": "a reader stores offsets when `commit` is called",
    "max.poll.records": "a reader returns what has arrived",
    "heartbeat.interval.ms": "the session decides how often a reader sends one",
    "partition.assignment.strategy": "group_protocol= chooses 'consumer', 'cooperative' or 'eager'",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes",
}


def reader_fields(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `ClientSettings`, and the keywords for `Reader`.

    With a group the reader starts where the group left off, as consumers do; without one, and where nothing is
    committed, where `auto.offset.reset` says."""
    given = _take(config, {**_CLIENT, **_SECURITY, **_READER}, {**_FOR_PRODUCERS, **_READER_HAS_NONE})
    keywords = _fields_of(_READER, given)
    if "group" in keywords:
        keywords["start"] = CommittedElse("latest") if keywords.get("start") == "latest" else "committed"
    return _client_fields(config, given, DEFAULT_SERVERS), keywords


# --- processors ---


def processor_fields(config: Config) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the fields of `ClientSettings`, and the keywords for a processor's reader and for its producer.

    What a processor always does (`isolation.level`, `acks`, `enable.idempotence`) may be said, and sets nothing."""
    of_reader, of_producer = _FOR_CONSUMERS.keys() - _PRODUCER.keys(), _FOR_PRODUCERS.keys() - _READER.keys()
    others = {*_CLIENT, *_SECURITY}
    settings, reader = reader_fields(_without(config, of_producer - others))
    _, producer = producer_fields(_without(config, of_reader - others))
    for keywords, name, always in (
        (reader, "read_committed", True),
        (producer, "acks", "all"),
        (producer, "idempotent", True),
    ):
        if keywords.get(name) == always:
            del keywords[name]
    return settings, reader, producer


def _without(config: Config, names: Set[str]) -> dict[str, object]:
    return {name: value for name, value in config.items() if name not in names}


# --- tables ---

_FOR_PRODUCERS: Final = dict.fromkeys((*_PRODUCER, *_PRODUCER_HAS_NONE), "it is for producers")
_FOR_CONSUMERS: Final = dict.fromkeys((*_READER, *_READER_HAS_NONE), "it is for consumers")


def _take(config: Config, known: Mapping[str, Setting], absent: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the parsed values by field. Two names of one field (librdkafka's and Java's) must agree."""
    given: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for name, value in config.items():
        if name not in known:
            if absent is not None and name in absent:
                raise ConfigError(f"{name} is not supported ({absent[name]}): remove it")
            if name.startswith("sasl.kerberos."):
                raise ConfigError(f"{name}: Kerberos (GSSAPI) is not supported. Use SCRAM, OAUTHBEARER or mutual TLS")
            raise ConfigError(f"unknown setting {name!r}{nearest(name, known)}")
        field, parse = known[name]
        parsed = parse(name, value)
        if given.setdefault(field, parsed) != parsed:
            raise ConfigError(f"{said_by[field]} and {name} set the same thing to different values")
        said_by.setdefault(field, name)
    return given


def _fields_of(table: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict.fromkeys(setting.field for setting in table.values() if setting.field != _NOTHING)
    return {field: given[field] for field in fields if field in given}


def override(lower: Config, higher: Config) -> dict[str, object]:
    """Merge two configurations. Where both set a field, by whichever of its names, `higher` wins."""
    known = {**_CLIENT, **_SECURITY, **_PRODUCER, **_READER}
    said = {known[name].field for name in higher if name in known}
    return {
        **{name: value for name, value in lower.items() if name not in known or known[name].field not in said},
        **higher,
    }
