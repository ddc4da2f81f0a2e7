"""Which run a test belongs to: `make test`, `make test-long` or `make soak`.

A test without a mark is in `make test`. One that is marked `long` is in `make test-long`, one that is marked `soak` in
`make soak`. Of a test with parameters that is marked `every_run(id, ...)`, the named parameters are in `make test` and
the others in `make test-long`: so a promise is guarded by every run, and all its variants by the long one.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest


def mark_long(items: list[pytest.Item], *, whole: bool) -> None:
    """Mark the parameters that `every_run` does not name as long. `whole` is true if the whole suite was collected:
    then a name that no test has is an error."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for item in items:
        marker = item.get_closest_marker("every_run")
        if marker is None:
            continue
        callspec = getattr(item, "callspec", None)
        parameters = callspec.id if callspec is not None else ""
        test = item.nodeid.partition("[")[0]
        named[test].update(marker.args)
        seen[test].add(parameters)
        if parameters not in marker.args:
            item.add_marker(pytest.mark.long)
    missing = [f"{test}[{name}]" for test, names in named.items() for name in sorted(names - seen[test])]
    if whole and missing:
        raise pytest.UsageError(f"every_run names parameters that do not exist: {', '.join(missing)}")


def without_tool(reason: str) -> None:
    """Fails a test that needs Java, Maven or a browser where it is missing; skips it where a person has chosen that."""
    if os.environ.get("FENCEPOST_ALLOW_SKIP") == "1" and os.environ.get("CI", "").lower() != "true":
        pytest.skip(reason)
    pytest.fail(f"{reason}; FENCEPOST_ALLOW_SKIP=1 skips them (never with CI=true)", pytrace=False)
