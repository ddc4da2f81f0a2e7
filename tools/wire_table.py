"""A tool that writes the tables of docs/wire.md: the server's APIs and versions beside Apache Kafka's.

    python -m tools.wire_table            prints the tables
    python -m tools.wire_table --write    puts them into docs/wire.md

What is served comes from the registry (`fencepost.server.api`), what an API does from the first sentence of its module.
Kafka's ranges are those a broker of this version advertises; `tests/compat/test_versions.py` compares them with one.
"""

from __future__ import annotations

import sys
from typing import Final

from fencepost.server.api import APIS
from fencepost.server.net.router import Api
from fencepost.wire.messages import API_NAMES
from tools.section import ROOT, Section

PAGE: Final = ROOT / "docs" / "wire.md"
_SECTION: Final = Section(PAGE, "<!-- tables: written by tools/wire_table.py -->", "<!-- end of the tables -->")

# fmt: off
KAFKA: Final = {  # 4.3.1: API key → lowest and highest version
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
    49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
    80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 0), 89: (0, 0),
    90: (0, 1), 91: (0, 0), 92: (0, 0),
}
# fmt: on

_TRANSACTIONS: Final = "v5 needs `transaction.version` 2 (KIP-890), which is not advertised: no client asks for it"
NARROWER: Final = {
    24: "v4 and v5 are for brokers among themselves",
    26: _TRANSACTIONS,
    27: "v2 tells a broker which `transaction.version` a marker follows: there is one here",
    28: _TRANSACTIONS,
    17: "after v0 clients send SASL bytes without Kafka's framing (before KIP-152)",
}
"""The reasons for leaving out the newest versions of an API."""

_ONE_NODE: Final = "one node, and no quorum to manage"
_NO_TOKENS: Final = "there are no delegation tokens: use SCRAM"
_OTHER_GROUPS: Final = "share groups and streams groups are not built"
ABSENT: Final = {
    **dict.fromkeys((38, 39, 40, 41), _NO_TOKENS),
    **dict.fromkeys((64, 80, 81), _ONE_NODE),
    **dict.fromkeys((76, 77, 78, 79, *range(83, 93)), _OTHER_GROUPS),
}
"""The reasons for not serving one of Kafka's APIs."""


def tables() -> str:
    served = [
        "| key | API | versions | Kafka 4.3.1 | what it does |",
        "|---:|---|---|---|---|",
        *(_served(api) for api in APIS.values()),
    ]
    absent = [
        "| key | API | Kafka 4.3.1 | why not |",
        "|---:|---|---|---|",
        *(f"| {key} | {API_NAMES[key]} | {_range(KAFKA[key])} | {ABSENT[key]} |" for key in KAFKA if key not in APIS),
    ]
    return "\n".join(["### Served", "", *served, "", "### Not served", "", *absent])


def page(text: str) -> str:
    """Return the page with current tables."""
    return _SECTION.within(text, tables())


def _served(api: Api) -> str:
    kafka = KAFKA.get(api.key)
    lowest = api.versions[0] if api.advertise_from is None else api.advertise_from
    note = f"; {NARROWER[api.key]}" if api.key in NARROWER else ""
    theirs = "-" if kafka is None else _range(kafka)
    return f"| {api.key} | {api.name} | {_range((lowest, api.versions[1]))} | {theirs} | {_purpose(api)}{note} |"


def _purpose(api: Api) -> str:
    """Return the first sentence of the API's module, without the name at its start."""
    text = " ".join((sys.modules[api.handle.__module__].__doc__ or "").split())
    return text.partition(": ")[2].partition(". ")[0].removesuffix(".").replace("|", "\\|")


def _range(versions: tuple[int, int]) -> str:
    lowest, highest = versions
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


if __name__ == "__main__":
    _SECTION.main(tables)
