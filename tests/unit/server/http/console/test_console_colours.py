"""The console's colours: text and the edges of fields stand out enough in both themes (WCAG 2.1, level AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fencepost.server.http.console as console

pytestmark = pytest.mark.unit

SHEET = (Path(console.__file__).parent / "static" / "console.css").read_text(encoding="utf-8")
COLOURS = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\);", SHEET)
LIGHT, DARK = ({name: both[at] for name, *both in COLOURS} for at in (0, 1))


def brightness(colour: str) -> float:
    """The relative luminance of #rgb or #rrggbb."""
    digits = "".join(digit * (2 if len(colour) == 4 else 1) for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((brightness(one), brightness(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_black_on_white_has_the_largest_contrast() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)


def test_every_colour_has_a_value_of_both_themes() -> None:
    assert set(re.findall(r"--([\w-]+):", SHEET)) == set(LIGHT) == set(DARK) >= {"ground", "text", "series"}


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(theme: dict[str, str]) -> None:
    pairs = [(text, on) for text in ("text", "quiet", "accent", "good", "bad", "warn") for on in ("ground", "panel")]
    pairs += [("warn", "warn-ground"), ("text", "mark")]
    assert [(text, on) for text, on in pairs if contrast(theme[text], theme[on]) < 4.5] == []


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_fields_and_lines_of_charts_can_be_seen(theme: dict[str, str]) -> None:
    assert [
        (name, on) for name in ("edge", "series") for on in ("ground", "panel") if contrast(theme[name], theme[on]) < 3
    ] == []
