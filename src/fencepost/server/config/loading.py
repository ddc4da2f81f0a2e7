"""The server's settings from all their sources. Flags take precedence over the environment (FENCEPOST_…), the
environment over the file, the file over the defaults.

Names and types come from `ServerConfig` and `ListenerConfig` alone, so every setting has one name in all sources:

    sync              --sync, -X sync=os                      FENCEPOST_SYNC
    oauth.issuer      -X oauth.issuer=…                       FENCEPOST_OAUTH_ISSUER
    listeners.a.key   -X listeners.a.key=…                    FENCEPOST_LISTENERS_A_KEY
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from fencepost.errors import ConfigError
from fencepost.server.config.listener import (
    ListenerConfig,
    WrongSetting,
    check_listener_name,
    check_listener_setting,
)
from fencepost.server.config.settings import FILES_OR_ADDRESSES, SECTIONS, ServerConfig, check_setting, file_name

Names: TypeAlias = tuple[str, ...]
"""A name with the tables around it."""
ENVIRONMENT_PREFIX: Final = "FENCEPOST_"
_LISTENERS: Final = "listeners"
_TABLES: Final = (*SECTIONS, _LISTENERS)
_LISTENER_VARIABLE: Final = re.compile(rf"{ENVIRONMENT_PREFIX}LISTENERS_([A-Z0-9]+)_([A-Z_]+)")
_NEAR: Final = 0.8
"""Similarity from which an unknown environment variable counts as a misspelled setting. It is not an error, because
others use the prefix too: clients (FENCEPOST_SERVERS), or Kubernetes for a service of this name."""


class Mistake(NamedTuple):
    where: str
    """FILE:LINE, a variable's name, or "" for a flag."""
    text: str
    setting: str = ""
    """The name of a known setting whose value is wrong."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class WrongConfiguration(ConfigError):
    """All mistakes of a configuration, one per line."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


class _Given(NamedTuple):
    """A setting as one source gives it."""

    names: Names
    """("sync",), ("oauth", "issuer") or ("listeners", "a", "key")."""
    value: object
    where: Callable[[], str] = str
    spelled: Callable[[Names], str] = ".".join
    """Returns a name as this source has it."""
    is_text: bool = False
    folder: Path | None = None
    """Where relative paths start; None: where the process does."""


@dataclass(frozen=True)
class Sources:
    """The sources of the settings: flags, environment and file. `load` may be called again: a reload reads the file
    anew."""

    file: Path | None
    environment: Mapping[str, str]
    flags: Mapping[str, object]
    """By name (`oauth.issuer`). Texts (`-X`) are parsed, other values are taken as they are."""

    def load(self) -> ServerConfig:
        """Return the settings, or raise WrongConfiguration with every mistake."""
        mistakes: list[Mistake] = []
        given: dict[Names, _Given] = {}
        for each in (
            *_from_file(self.file, mistakes),
            *_from_environment(self.environment),
            *_from_flags(self.flags),
        ):
            checked = _checked(each, mistakes)
            if checked is not None:
                given[each.names] = checked
        single = [given[names] for names in (("listen",), ("advertise",)) if names in given]
        if single and any(names[0] == _LISTENERS for names in given):
            mistakes.append(Mistake(single[0].where(), "listen and advertise cannot be combined with listeners"))
        config = _build(given, mistakes)
        if mistakes:
            raise WrongConfiguration(mistakes)
        assert config is not None
        return config

    def misspelled_variables(self) -> list[str]:
        """Return a sentence for each environment variable that is nearly the name of a setting."""
        known = {"_".join(names).upper() for names in _server_fields()}
        found = []
        for variable in self.environment:
            name = variable.removeprefix(ENVIRONMENT_PREFIX)
            if variable == name or name in known or _LISTENER_VARIABLE.fullmatch(variable):
                continue
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            if near:
                found.append(
                    f"the server does not know the variable {variable}; did you mean {ENVIRONMENT_PREFIX}{near[0]}?"
                )
        return found


# -- the known names ----------------------------------------------------------------------------------------------


@cache
def _server_fields() -> dict[Names, Field[Any]]:
    return {
        tuple(file_name(field.name).split(".")): field for field in fields(ServerConfig) if field.name != _LISTENERS
    }


@cache
def _listener_fields() -> dict[str, Field[Any]]:
    return {field.name: field for field in fields(ListenerConfig) if field.name != "name"}


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _variable(names: Names) -> str:
    return ENVIRONMENT_PREFIX + "_".join(names).upper()


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


# -- the sources ---------------------------------------------------------------------------------------------------


def _from_file(path: Path | None, mistakes: list[Mistake]) -> Iterator[_Given]:
    if path is None:
        return
    try:
        file = TomlFile(path)
    except ConfigError as error:
        mistakes.append(Mistake("", str(error)))
        return
    for names, value in _leaves(file.values):
        yield _Given(names, value, partial(file.where, names), folder=path.parent)


def _leaves(table: Mapping[str, Any], around: Names = ()) -> Iterator[tuple[Names, object]]:
    """Return settings with their values, and tables that cannot be there."""
    for name, value in table.items():
        names = (*around, name)
        holds_settings = names[0] == _LISTENERS if len(names) == 2 else len(names) == 1 and name in _TABLES
        if holds_settings and isinstance(value, dict) and (value or len(names) == 1):
            yield from _leaves(value, names)
        else:
            yield names, value


def _from_environment(environment: Mapping[str, str]) -> Iterator[_Given]:
    known = {_variable(names): names for names in _server_fields()}
    for variable, text in environment.items():
        if found := _LISTENER_VARIABLE.fullmatch(variable):
            known[variable] = (_LISTENERS, found[1].lower(), found[2].lower())
        if variable in known:
            yield _Given(known[variable], text, partial(str, variable), _variable, is_text=True)


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    """Dots and dashes in a flag's name count as underscores, but those around a listener's name are dots."""
    flat = {"_".join(names): names for names in _server_fields()}
    for name, value in flags.items():
        is_text = isinstance(value, str)
        if name.startswith(f"{_LISTENERS}."):
            yield _Given(tuple(name.replace("-", "_").split(".")), value, is_text=is_text)
        else:
            plain = name.replace(".", "_").replace("-", "_")
            yield _Given(flat.get(plain, (plain,)), value, spelled="_".join, is_text=is_text)


# -- a TOML file: `tomllib` parses the values but keeps no lines ----------------------------------------------------


class TomlFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} must be UTF-8: {error.reason}") from error
        try:
            self.values: dict[str, Any] = tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            reason, _, place = str(error).partition(" (at ")
            line = place.removeprefix("line ").partition(",")[0]
            if not line.isdigit():  # "at end of document"
                line = str(len(self._text.splitlines()))
            raise ConfigError(f"{path}:{line}: {reason}") from error
        self._lines: dict[Names, int] | None = None

    def where(self, names: Names) -> str:
        """Return FILE:LINE of a name, or of the innermost table around it that the file has."""
        if self._lines is None:
            self._lines = name_lines(self._text)
        while names and names not in self._lines:
            names = names[:-1]
        return f"{self.path}:{self._lines[names]}" if names else str(self.path)


def name_lines(text: str) -> dict[Names, int]:
    """Return the line of each name of a valid TOML document.

    Only whole statements make a valid document. So after each line the text so far is parsed: if it is valid, the names
    that are new in it belong to the statement that begins after the previous valid text. Parsing so often is slow, but
    only a mistake needs the lines, and configuration files are short.
    """
    lines = text.splitlines(keepends=True)
    found: dict[Names, int] = {}
    begins: int | None = None
    for number, line in enumerate(lines, 1):
        if begins is None:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            begins = number
        try:
            values = tomllib.loads("".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on
        for names in _names(values):
            found.setdefault(names, begins)
        begins = None
    return found


def _names(table: Mapping[str, Any], around: Names = ()) -> Iterator[Names]:
    for name, value in table.items():
        yield (*around, name)
        if isinstance(value, dict):
            yield from _names(value, (*around, name))


# -- values --------------------------------------------------------------------------------------------------------


def _checked(given: _Given, mistakes: list[Mistake]) -> _Given | None:
    """Return the setting with its value as the right type, whatever the other settings are. Add a mistake, and return
    None, if nothing has this name or the value is wrong."""
    names, where = given.names, given.where
    name, is_of_listener = ".".join(names), names[0] == _LISTENERS and len(names) > 1
    known = {(*names[:2], each): field for each, field in _listener_fields().items()} if is_of_listener else {}
    field = (known or _server_fields()).get(names)
    if field is None:
        spelled = given.spelled(names)
        like = map(given.spelled, known or [*_server_fields(), *((table,) for table in _TABLES)])
        text = f"{name} needs an address" if is_of_listener and len(names) == 2 else _unknown(spelled, list(like))
        mistakes.append(Mistake("" if where() == spelled else where(), text))
        return None
    try:
        if is_of_listener:
            check_listener_name(names[1])
            value = _converted(name, given, _hints(ListenerConfig)[field.name])
            check_listener_setting(names[1], field, value)
        else:
            value = _converted(name, given, _hints(ServerConfig)[field.name])
            if field.name in FILES_OR_ADDRESSES and given.folder is not None and "://" not in str(value):
                value = str(given.folder / str(value))
            check_setting(field, value)
    except ConfigError as error:
        text = str(error)
        is_named = name in text or isinstance(error, WrongSetting)
        mistakes.append(Mistake(where(), text if is_named else f"{name}: {text}", name))
        return None
    return given._replace(value=value)


def _converted(name: str, given: _Given, hint: Any) -> object:
    """Return the value as the setting's type, or raise ConfigError."""
    value, as_text = given.value, given.is_text
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return None
    (kind,) = [each for each in kinds if each is not type(None)]
    if kind is bool:
        if as_text and str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, not {value!r}")
        return value
    if kind is int:
        if as_text:
            try:
                return int(str(value))
            except ValueError:
                raise ConfigError(f"{name} must be a whole number, not {value!r}") from None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{name} must be a whole number, not {value!r}")
        return value
    if get_origin(kind) is tuple:
        if as_text:
            return tuple(part.strip() for part in str(value).split(";") if part.strip())
        if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
            raise ConfigError(f"{name} must be a list of strings, not {value!r}")
        return tuple(value)
    if kind is Path and isinstance(value, str | Path):
        return Path(value) if given.folder is None else given.folder / value
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise ConfigError(f"{name} must be {' or '.join(map(repr, get_args(kind)))}, not {value!r}")
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, not {value!r}")
    return value


# -- the whole -----------------------------------------------------------------------------------------------------


def _build(given: Mapping[Names, _Given], mistakes: list[Mistake]) -> ServerConfig | None:
    """Return the configuration. Add the mistakes that only show when all settings are known."""
    listeners: dict[str, dict[str, Any]] = {}
    settings: dict[str, Any] = {}
    for names, each in given.items():
        if names[0] == _LISTENERS:
            listeners.setdefault(names[1], {})[names[2]] = each.value
        else:
            settings[_server_fields()[names].name] = each.value
    wrong = {mistake.setting for mistake in mistakes if mistake.setting}
    built = []
    for name, chosen in listeners.items():
        if any(each.startswith(f"{_LISTENERS}.{name}.") for each in wrong):
            continue  # without these settings it would seem to lack them
        try:
            if "address" not in chosen:
                raise ConfigError(f"listeners.{name} needs an address")
            listener = ListenerConfig(name=name, **chosen)
            if listener.encrypts:
                from fencepost.server.net.tls import check_files  # only servers with TLS load it

                check_files(listener)
            built.append(listener)
        except ConfigError as error:
            mistakes += [Mistake(_where(each, given, name), str(each)) for each in _all(error)]
    try:
        config = ServerConfig(**settings, listeners=tuple(built))
        _check_keys(config)
    except ConfigError as error:
        mistakes += [Mistake(_where(each, given, None), str(each)) for each in _all(error) if not _follows(each, wrong)]
        return None
    return config


def _check_keys(config: ServerConfig) -> None:
    """Raise WrongSetting if a listener takes tokens, and the keys of their issuer cannot be read."""
    if any("OAUTHBEARER" in each.mechanisms for each in config.endpoints if each.authenticates):
        from fencepost.server.broker import make_tokens  # only servers that take tokens load it

        try:
            make_tokens(config)
        except ConfigError as error:
            raise WrongSetting("oauth_jwks", str(error)) from error


def _all(error: ConfigError) -> list[ConfigError]:
    return [error, *error.others] if isinstance(error, WrongSetting) else [error]


def _follows(error: ConfigError, wrong: set[str]) -> bool:
    """Tell if the settings only seem to be wrong because another one is."""
    if not isinstance(error, WrongSetting):
        return False
    return any(file_name(name) in wrong for name in (error.setting_name, *error.because_of))


def _where(error: ConfigError, given: Mapping[Names, _Given], listener: str | None) -> str:
    """Return where the setting of an error was given, or else the first setting of its listener."""
    if isinstance(error, WrongSetting):
        for names, each in given.items():
            if error.setting_name in (".".join(names), "_".join(names)):
                return each.where()
    for names, each in given.items():
        if listener is not None and names[:2] == (_LISTENERS, listener):
            return each.where()
    return ""
