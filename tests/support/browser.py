"""A real Chromium that visits the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING: Final = "tests of the console need Chromium (Debian: chromium)"
WAIT_MS: Final = 60_000
"""How long a page may take to show what a test waits for, on a machine that is busy with other tests."""
expect.set_options(timeout=WAIT_MS)  # of tests that give none
_FLAGS: Final = (
    "--no-sandbox",  # tests may run as root
    "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-dev-shm-usage", "--no-first-run",
)  # fmt: skip


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def open_browser(executable: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(_FLAGS), timeout=WAIT_MS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """One person's window, with cookies of its own. It remembers everything that the browser complains about: errors of
    scripts, files that are missing, and what the content security policy has blocked."""

    def __init__(self, browser: Browser, url: str, **options: object) -> None:
        self.url = url
        self.context: BrowserContext = browser.new_context(**options)  # type: ignore[arg-type]
        self.context.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        self.page.on("console", self._heard)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def go(self, path: str) -> Page:
        """Load a page of the console."""
        self.page.goto(self.url + path)
        return self.page

    def wait_until_live(self) -> None:
        """Wait for the stream of the page."""
        self.page.locator("#connection.live").wait_for()

    def close(self) -> None:
        self.context.close()


def table_rows(page: Page, table: str) -> list[list[str]]:
    """The texts of the cells of a table's body, by the id of the table."""
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    found: list[list[str]] = page.locator(f"#{table} tbody tr").evaluate_all(script)
    return found
