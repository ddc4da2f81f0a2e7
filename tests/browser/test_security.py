"""The console with users: logging in and out, what others may not see, and the pages of security."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

import fencepost
from fencepost.core.security.acls import Operation, ResourceType
from fencepost.server.http.console.page import EVERY_SECONDS
from tests.support.browser import WAIT_MS, Visitor
from tests.support.http_client import ANY
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.browser

ADMIN, ALICE = "admin-secret", "alice-secret"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[fencepost.Server]:
    with ThreadPoolExecutor(1) as thread:  # the browser's driver has an event loop in this one
        thread.submit(add_users, tmp_path / "data", {"admin": ADMIN, "alice": ALICE}).result()
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY, audit_topic="audit",
    ) as started:  # fmt: skip
        with log_in(started.address, "admin", ADMIN) as client:
            create_acls(client, [grant("alice", ResourceType.TOPIC, "orders", Operation.READ)])
        yield started


def enter(page: Page, user: str, password: str) -> None:
    """Fill in the form as a person does, with the keyboard."""
    page.get_by_label("User").press_sequentially(user)
    page.keyboard.press("Tab")
    page.keyboard.type(password)
    page.keyboard.press("Enter")


def _answer_late(route: Route) -> None:
    """The server ends the page's stream at the logout. The page must not take that for an error while it waits."""
    answer = route.fetch(max_redirects=0)
    time.sleep(1.5 * EVERY_SECONDS)  # until the server has looked at its streams; the event must not come
    route.fulfill(response=answer)


def test_a_person_logs_in_sees_what_they_may_and_logs_out(
    server: fencepost.Server, visit: Callable[..., Visitor]
) -> None:
    window = visit(server)
    page = window.go("/security/acls?find=alice")
    enter(page, "admin", "wrong")
    expect(page.locator(".problem")).to_have_text("the login failed: wrong user, password or token", timeout=WAIT_MS)
    window.complaints.clear()  # the browser says that the answer was 401
    enter(page, "admin", ADMIN)
    row = page.get_by_role("region", name="ACLs").locator("tbody tr")
    expect(row).to_have_count(1, timeout=WAIT_MS)
    expect(row).to_contain_text("User:alice")
    expect(row).to_contain_text("orders")
    expect(page.get_by_text("User:admin")).to_be_visible()
    page.get_by_role("link", name="Users", exact=True).click()
    users = page.get_by_role("region", name="Users").locator("tbody th")
    expect(users).to_have_text(["admin", "alice"], timeout=WAIT_MS)
    page.get_by_role("link", name="Audit trail").click()
    window.wait_until_live()
    trail = page.get_by_role("region", name="Audit trail")
    expect(trail).to_contain_text("login.failed", timeout=WAIT_MS)
    expect(trail).to_contain_text("acl.created")
    page.route("**/logout", _answer_late)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible(timeout=WAIT_MS)
    assert ADMIN not in page.content()
    page.go_back()
    expect(page.get_by_label("Password")).to_be_visible(timeout=WAIT_MS)


def test_a_user_does_not_see_what_they_may_not(server: fencepost.Server, visit: Callable[..., Visitor]) -> None:
    window = visit(server)
    page = window.go("/security")
    enter(page, "alice", ALICE)
    expect(page.get_by_text("User:alice may not DESCRIBE the cluster")).to_be_visible(timeout=WAIT_MS)
    assert "admin" not in page.locator("main").inner_text()
    for path in ("/security/acls", "/security/quotas"):
        expect(window.go(path).get_by_text("User:alice may not DESCRIBE the cluster")).to_be_visible()
    expect(window.go("/security/audit").get_by_text("User:alice may not read the audit trail")).to_be_visible()


def test_the_end_of_a_session_while_watching_leads_to_the_login_page(
    server: fencepost.Server, visit: Callable[..., Visitor]
) -> None:
    window = visit(server)
    page = window.go("/security/audit")
    enter(page, "admin", ADMIN)
    window.wait_until_live()
    with log_in(server.address, "admin", ADMIN) as client:  # a change of the user's credentials ends the session
        answer = client.call(51, 0, deletions=[{"name": "admin", "mechanism": 1}], upsertions=[])
        assert [row.error_code for row in answer.results] == [0]
    expect(page.get_by_label("Password")).to_be_visible(timeout=WAIT_MS)
    assert page.url.endswith("/login?next=%2Fsecurity%2Faudit")
    window.complaints.clear()  # the browser says that the stream has ended


def test_without_authorization_the_page_says_so(
    console_server: fencepost.Server, visit: Callable[..., Visitor]
) -> None:
    window = visit(console_server)
    expect(window.go("/security").get_by_text("Authorization is off: everyone")).to_be_visible()
    expect(
        window.go("/security/audit").get_by_text("There is no audit trail. The settings file or topic")
    ).to_be_visible()
