"""Take the pictures of docs/console.md: `python -m tools.screenshots`.

A server with a small shop in it is visited by a real Chromium, in both themes. The pictures go to docs/images/console;
look at them before you commit them.
"""

from __future__ import annotations

import io
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import Runner
from fencepost.core.security.acls import Operation, ResourceType
from tests.support.browser import MISSING, Visitor, find_chromium, open_browser
from tests.support.http_client import ANY
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener
from tests.support.sink_rows import Rows

FOLDER: Final = Path(__file__).parent.parent / "docs" / "images" / "console"
THEMES: Final = ("light", "dark")
_SEARCH: Final = "/topics/orders/records?from=earliest&json=%24.state+%3D+%22paid%22"
PAGES: Final = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "records": _SEARCH,
    "producers": "/producers?topic=orders",
    "transaction": "/transactions/payments-7",
    "owners": "/owners",
    "groups": "/groups",
    "group": "/groups/billing",
    "reset": "/groups/billing/reset?topic=orders&to=earliest",
    "sinks": "/sinks",
}
_SECURITY: Final = {"security": "/security/acls", "audit": "/security/audit"}
_SIZE: Final = {"width": 1200, "height": 760}
_COLOURS: Final = 96
"""Enough for pages without photographs, at a third of the bytes."""
_CUSTOMERS: Final = ("ada", "grace", "edsger", "barbara", "donald", "frances", "leslie", "radia", "tony", "jim", "pat")
_SECRETS: Final = {"admin": "admin-secret", "shop": "shop-secret", "reports": "reports-secret"}


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit(MISSING)
    FOLDER.mkdir(parents=True, exist_ok=True)
    # The browser's driver runs a loop in this thread, so everything else is made before it.
    with tempfile.TemporaryDirectory() as folder, ExitStack() as scene:
        shop = scene.enter_context(fencepost.Server(http_address=ANY))
        scene.enter_context(_fill(shop))
        guarded = scene.enter_context(_guarded(Path(folder)))
        time.sleep(75)  # for the charts, and until the open transaction needs attention
        with open_browser(chromium) as browser:
            for theme in THEMES:
                _visit(browser, shop, PAGES, theme)
                _visit(browser, guarded, _SECURITY, theme, logs_in=True)


def _visit(
    browser: Browser, server: fencepost.Server, pages: Mapping[str, str], theme: str, *, logs_in: bool = False
) -> None:
    window = Visitor(browser, server.http, color_scheme=theme, viewport=_SIZE)
    if logs_in:
        page = window.go("/login")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill(_SECRETS["admin"])
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(server.http + "/")
    for name, path in pages.items():
        page = window.go(path)
        page.wait_for_timeout(1500)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(FOLDER / f"{name}-{theme}.png", optimize=True)
        print(f"{name}-{theme}.png")
    window.close()
    if window.complaints:
        raise SystemExit(f"the browser complains: {window.complaints}")


@contextmanager
def _fill(server: fencepost.Server) -> Iterator[None]:
    address = server.address
    with ExitStack() as stack:
        admin = stack.enter_context(fencepost.Admin(address))
        for topic, partitions in (("orders", 3), ("payments", 2), ("clicks", 6), ("orders-enriched", 3)):
            admin.create_topic(topic, partitions)
        admin.create_topic("ledger", 1, configs={"fencepost.writer.group": "ledgers"})
        producer = stack.enter_context(fencepost.Producer(address))
        for number in range(20_000):
            customer = _CUSTOMERS[number % len(_CUSTOMERS)]
            order = {"id": number, "customer": customer, "state": "paid" if number % 997 == 0 else "new"}
            producer.send("orders", json.dumps(order).encode(), key=customer.encode(), headers=[("source", b"web")])
        producer.flush()
        for index in range(3):
            admin.commit_group_offsets("billing", "orders", {index: 2000 + 500 * index})
            admin.commit_group_offsets("reports", "orders", {index: 3000})
        paying = stack.enter_context(fencepost.Producer(address, name="payments-7", transaction_timeout=600))
        stack.enter_context(paying.transaction())
        paying.send("payments", b"half a payment")
        paying.flush()
        _own(address, stack)
        _sink(address, stack)
        stack.enter_context(_traffic(producer))
        yield


def _own(address: str, stack: ExitStack) -> None:
    """Let a ledger go from one writer to the next; the old one notices when it writes."""
    writers = []
    for generation in (1, 2):
        config = {"bootstrap.servers": address, "client.id": f"ledger-writer-{generation}"}
        writers.append(stack.enter_context(fencepost.Producer.from_config(config)))
        writers[-1].own("ledgers", ["ledger-0"], generation=generation)
        writers[-1].send("ledger", b"an entry").result()
    with suppress(fencepost.Fenced):
        writers[0].send("ledger", b"too late").result()


def _sink(address: str, stack: ExitStack) -> None:
    runner = Runner(ClientSettings.of(address), "enrich")
    stack.callback(runner.close)
    for batch in range(3):
        runner.carry_out(Rows(runner, "orders-enriched", 1000 + batch), "enrich-orders", batch)


@contextmanager
def _traffic(producer: fencepost.Producer) -> Iterator[None]:
    """Write clicks until the pictures are taken."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.05):
            for _ in range(100):
                producer.send("clicks", b"a click")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield
    finally:
        ended.set()
        writing.join()


@contextmanager
def _guarded(folder: Path) -> Iterator[fencepost.Server]:
    """A server with users, ACLs and an audit trail."""
    add_users(folder / "data", _SECRETS)
    with fencepost.Server(
        folder / "data", listeners=login_listener("PLAIN"), authorization_enabled=True, http_address=ANY,
        authorization_super_users=("User:admin",), audit_topic="audit",
    ) as server:  # fmt: skip
        with log_in(server.address, "admin", _SECRETS["admin"]) as client:
            create_acls(
                client,
                [
                    grant("shop", ResourceType.TOPIC, "orders", Operation.WRITE),
                    grant("reports", ResourceType.TOPIC, "orders", Operation.READ),
                    grant("reports", ResourceType.GROUP, "reports", Operation.READ),
                ],
            )
        yield server


if __name__ == "__main__":
    main()
