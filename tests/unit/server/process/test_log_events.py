"""The events of the log: every log call of the server has a name, and its values have names."""

from __future__ import annotations

import ast
import json
import logging
import re

import pytest

from fencepost.server.process.log_events import DROPPED, EVENTS, OTHER_EVENT
from fencepost.server.process.reporting import FIRST_LINES, JsonLines, Reporter
from tests.support.pages import ROOT

pytestmark = pytest.mark.unit

SOURCE = ROOT / "src" / "fencepost"
PLACEHOLDER = re.compile(r"%(?:\.\d+)?[srdf]")


def log_calls() -> list[tuple[str, str]]:
    """Return the texts of all log calls of the server, with their places."""
    found = []
    for path in [*SOURCE.glob("server/**/*.py"), *SOURCE.glob("log/**/*.py"), SOURCE / "cli" / "serve.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("logger", "_logger", "life")
                and node.func.attr in ("debug", "info", "warning", "error", "exception", "critical")
            ):
                text = node.args[0]
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert isinstance(text, ast.Constant), f"{where}: the text of a log call must be a constant"
                found.append((str(text.value), where))
    return found


def test_every_log_call_has_an_event() -> None:
    calls = log_calls()
    assert len(calls) > 40
    assert [where for text, where in calls if text not in EVENTS] == []
    assert [text for text in EVENTS if text not in dict(calls)] == [], "nobody writes these lines any more"


@pytest.mark.parametrize("text", EVENTS)
def test_every_value_of_a_line_has_a_name(text: str) -> None:
    event = EVENTS[text]
    assert len(PLACEHOLDER.findall(text)) == len(event.fields)
    assert len({name for name in event.fields if name}) == len([name for name in event.fields if name])
    assert not {"time", "level", "event", "logger", "message", "traceback", "repeats"} & set(event.fields)
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", event.name)


def test_every_event_is_documented() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    for event in {*EVENTS.values(), OTHER_EVENT}:
        assert f"| `{event.name}` |" in page, event.name
    assert f"| `{DROPPED}` |" in page


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, object]] = []
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        assert text.isprintable(), "one line, and nothing that steers a terminal"
        self.lines.append(json.loads(text))


def test_a_line_is_one_object_with_names_and_values() -> None:
    target = Lines()
    reporter = Reporter(target)
    logger = logging.Logger("tested")
    logger.addHandler(reporter)
    logger.warning("severed the owner %s (%s): silent for more than its session of %d ms", "1.2.3.4:5", "a\nb", 3000)
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("closing %s: a request failed unexpectedly", "1.2.3.4:5")
    logger.info("of a library: %s", 1)
    reporter.close()
    silent, failed, other = target.lines
    assert silent["event"] == "owner.silent"
    assert silent["level"] == "warning"
    assert (silent["peer"], silent["client_id"], silent["session_ms"]) == ("1.2.3.4:5", "a\nb", 3000)
    assert str(silent["message"]).startswith("severed the owner 1.2.3.4:5 (a\\x0ab)")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", str(silent["time"]))
    assert failed["event"] == "request.failed"
    assert "ValueError: broken" in str(failed["traceback"])
    assert (other["event"], other["message"]) == ("other", "of a library: 1")


def test_a_clients_words_are_neither_long_nor_lines_of_their_own() -> None:
    target = Lines()
    reporter = Reporter(target)
    logger = logging.Logger("tested")
    logger.addHandler(reporter)
    text = "login failed: %.255r from %s on listener %s by %s: %s"
    for user in ("x" * 1_000_000, "a\x85b\u2028c\x9b2Jd\x7f"):
        logger.warning(text, user, "1.2.3.4", "default", "PLAIN", "reason")
    reporter.close()
    long, odd = target.lines
    assert long["user"] == "x" * 1000
    assert odd["user"] == "a\x85b\u2028c\x9b2Jd\x7f"


def test_repeats_are_counted_under_the_same_name() -> None:
    target = Lines()
    reporter = Reporter(target)
    logger = logging.Logger("tested")
    logger.addHandler(reporter)
    for number in range(FIRST_LINES + 7):
        logger.warning("closing %s: %s", number, "reason")
    reporter.close()
    assert [line["event"] for line in target.lines] == ["connection.closed"] * (FIRST_LINES + 1)
    assert target.lines[-1]["repeats"] == 7
