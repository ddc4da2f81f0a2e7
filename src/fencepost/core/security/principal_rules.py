"""Kafka's rules from the subject of a certificate to the name of a principal (`ssl.principal.mapping.rules`).

    RULE:^CN=(.*?),OU=Services.*$/$1/L, DEFAULT

The first rule whose pattern matches the whole subject gives the name: its replacement with `$1` and so on, in lower
case with L, in upper case with U. DEFAULT gives the subject itself. A subject that no rule matches has no name.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fencepost.errors import ConfigError

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
