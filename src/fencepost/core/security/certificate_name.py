"""The name that a certificate gives its holder, as in Kafka.

`subject_of` writes the subject of an X.509 certificate as text, in the form of RFC 2253 that Kafka (Java's
X500Principal) uses. `PrincipalRules` make the name of a principal from it (`ssl.principal.mapping.rules`):

    RULE:^CN=(.*?),OU=Services.*$/$1/L, DEFAULT

The first rule whose pattern matches the whole subject gives the name: its replacement with `$1` and so on, in lower
case with L, in upper case with U. DEFAULT gives the subject itself. A subject that no rule matches has no name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from fencepost.errors import ConfigError, Malformed

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0
_STRINGS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x14: "latin-1", 0x16: "ascii", 0x1B: "latin-1", 0x1E: "utf-16-be"}
"""Types of ASN.1 that are strings, with their encodings: UTF8, Printable, T61, IA5, General, BMP."""
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 names; any other is written as its number, with its value in hexadecimal."""
_ESCAPED: Final = ',=+<>#;"\\'


class _Element(NamedTuple):
    tag: int
    content: bytes
    encoded: bytes


def subject_of(certificate: bytes) -> str:
    """Return the subject of a DER certificate; raise Malformed if it is none."""
    outer = next(_elements(certificate), None)
    signed = next(_elements(outer.content), None) if outer is not None and outer.tag == _SEQUENCE else None
    if signed is None or signed.tag != _SEQUENCE:
        raise Malformed("not an X.509 certificate")
    fields = [field for field in _elements(signed.content) if field.tag != _VERSION]
    if len(fields) < 5:
        raise Malformed("not an X.509 certificate: it has no subject")
    return _name(fields[4].content)  # after the serial number, the algorithm, the issuer and the validity


def _name(content: bytes) -> str:
    """Return the parts in reverse order: a certificate begins with the country, the text with the common name."""
    parts = []
    for part in _elements(content):
        if part.tag != _SET:
            raise Malformed("not an X.509 certificate: its subject is no name")
        parts.append("+".join(_attribute(attribute.content) for attribute in _elements(part.content)))
    return ",".join(reversed(parts))


def _attribute(content: bytes) -> str:
    parts = list(_elements(content))
    if len(parts) != 2 or parts[0].tag != _OBJECT_IDENTIFIER:
        raise Malformed("not an X.509 certificate: an attribute of its subject is not a type and a value")
    kind, value = parts
    number = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or number}=#{value.encoded.hex()}"
    return f"{keyword}={_escaped(value.content.decode(_STRINGS[value.tag], 'replace'))}"


def _escaped(text: str) -> str:
    escaped = "".join(f"\\{char}" if char in _ESCAPED else "\\00" if char == "\0" else char for char in text)
    inner = escaped.strip(" \r")
    if not inner:
        return "".join(f"\\{char}" for char in escaped)
    before, _, after = escaped.partition(inner)
    return "".join(f"\\{char}" for char in before) + inner + "".join(f"\\{char}" for char in after)


def _object_identifier(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise Malformed("not an X.509 certificate: an object identifier is empty")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> Iterator[_Element]:
    """Cut DER into its elements: tag, length, content."""
    at = 0
    while at < len(data):
        start = at
        if at + 2 > len(data):
            raise Malformed("not an X.509 certificate: it ends too early")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise Malformed("not an X.509 certificate: it ends too early")
        yield _Element(tag, data[at : at + length], data[start : at + length])
        at += length


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,\s*|$)"
)
_GROUP: Final = re.compile(r"\$(\d)")


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None for DEFAULT."""
    replacement: str = ""
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = _GROUP.sub(lambda group: self._group(found, int(group[1])), self.replacement)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    @staticmethod
    def _group(found: re.Match[str], number: int) -> str:
        # As in Kafka, a number without a group stays as it is written.
        return f"${number}" if number > len(found.groups()) else found[number] or ""


class PrincipalRules:
    def __init__(self, text: str) -> None:
        self._rules: list[_Rule] = []
        at = 0
        text = text.strip() or "DEFAULT"
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None:
                raise ConfigError(
                    f"a mapping rule must be DEFAULT or RULE:PATTERN/REPLACEMENT/ with L or U behind it, "
                    f"not {text[at:]!r}"
                )
            at = found.end()
            if found["default"]:
                self._rules.append(_Rule(None))
                continue
            try:
                pattern = re.compile(found["pattern"])
            except re.error as error:
                raise ConfigError(f"the pattern {found['pattern']!r} of a mapping rule is wrong: {error}") from error
            self._rules.append(_Rule(pattern, found["replacement"], found["case"]))

    def name(self, subject: str) -> str | None:
        """Return the principal's name, or None if no rule matches."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        return None
