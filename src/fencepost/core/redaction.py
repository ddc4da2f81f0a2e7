"""Removal of secrets from text that leaves the machine: passwords, tokens, private keys, credentials in addresses.

The rules err on the side of leaving out too much. They see only text, so the caller also names the secrets it knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

LEFT_OUT: Final = "[left out]"
_SHORT: Final = 4
"""A known secret with fewer characters is replaced only as a whole word: it may occur in others by chance."""

_NAME: Final = (
    r"(?:pass(?:word|wd|phrase)|secret|token|jaas|credential|salt|stored[_.]key|server[_.]key|private[_.]key)"
)
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)
_PATH_NAME: Final = re.compile(r"(?:^|[_.])(?:key|certificate|ca|location|file|path)$", re.IGNORECASE)
# Text may be a client's, so no rule may look at a long word again and again: quantifiers are possessive (`*+`), and no
# rule begins with one.
_RULES: Final = (
    # To the end of the text if the end of the block is missing: a line may be cut off.
    (
        re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        LEFT_OUT,
    ),
    (re.compile(r"(?<=://)[^\s/@'\"]++@"), f"{LEFT_OUT}@"),
    (re.compile(r"(?P<kept>\bjaas\.config\s*+[=:]\s*+)[^\n]+", re.IGNORECASE), rf"\g<kept>{LEFT_OUT}"),
    (re.compile(r"(?P<kept>\b(?:basic|bearer)\s+)[^\s\"',;]{6,}", re.IGNORECASE), rf"\g<kept>{LEFT_OUT}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{5,}+\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*+"), LEFT_OUT),
    (
        re.compile(
            rf"(?P<kept>{_NAME}[\w.-]*+[\"']?\s*+[=:]\s*+)"
            r"(?:\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?|[^\s,;]+)",
            re.IGNORECASE,
        ),
        rf"\g<kept>{LEFT_OUT}",
    ),
)


def scrub(text: str, secrets: Collection[str] = ()) -> str:
    """Return the text without the `secrets`, and without what looks like one."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= _SHORT:
            text = text.replace(secret, LEFT_OUT)
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", LEFT_OUT, text)
    for rule, replacement in _RULES:
        text = rule.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Tell if a setting of this name has a secret as its value. The path of a secret's file is none."""
    return _SECRET_NAME.search(name) is not None and _PATH_NAME.search(name) is None


def scrub_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings, of whatever depth, without the values of those that are secret by their names or look so."""
    return {
        name: LEFT_OUT if value is not None and is_secret_name(name) else _scrubbed(value)
        for name, value in settings.items()
    }


def _scrubbed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return scrub_settings(value)
    if isinstance(value, list | tuple):
        return [_scrubbed(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else scrub(str(value))
