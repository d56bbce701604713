"""A real browser walks through every page: nothing may be executed, requested from elsewhere, or out of reach."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, expect

from holdfast import Done
from holdfast.dashboard.application import PAGES
from tests.browser.conftest import Visitor
from tests.support.dashboard_data import fill
from tests.support.service import Server

# Those that are no pages, or that need a parameter.
OTHERS = {"/live", "/jobs/find", "/jobs/newer", "/sessions/one", "/webhooks/one"}
PLAIN = [view.path for view in PAGES if "{" not in view.path and view.path not in OTHERS]
MODES: list[dict[str, Any]] = [
    {"color_scheme": "light"},
    {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
]
AXE = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


def pages_of(server: Server) -> list[str]:
    """Fill the queue and return the addresses of all pages."""
    found = fill(server.queue, hostile=True)
    numbers = [server.queue.get(found[name]).number for name in ("done", "failed", "running", "scheduled", "hostile")]
    return [
        *PLAIN,
        *(f"/jobs/{number}" for number in numbers),
        "/sessions/one?name=chat-42",
        f"/webhooks/one?id={found['webhook']}",
        "/jobs?q=state:failed",
    ]


@pytest.mark.slow("it opens every page in a browser")
@pytest.mark.parametrize("mode", MODES, ids=["light", "dark and narrow"])
def test_every_page_with_hostile_data_is_inert_accessible_and_fits(
    served: Server, chromium: Browser, mode: dict[str, Any]
) -> None:
    visitor = Visitor(chromium, served, **mode)
    for path in pages_of(served):
        page = visitor.go(path)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"{path} is {overflow} pixels too wide"
        found = Axe().run(page, options=AXE).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], path
        assert visitor.complaints == [], path
    visitor.context.close()


@pytest.mark.slow("it opens every page in a browser")
def test_every_page_works_without_script(server: Server, chromium: Browser) -> None:
    paths = pages_of(server)
    visitor = Visitor(chromium, server, java_script_enabled=False)
    for path in paths:
        visitor.go(path)
        expect(visitor.page.locator("main")).to_be_visible()
    page = visitor.go("/flow")
    row = page.locator("tr", has_text="images").first
    row.get_by_text("Pause", exact=True).first.click()
    row.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_have_text("Lane images is paused.")
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.slow("it opens every page in a browser")
def test_every_page_of_an_empty_queue_opens(server: Server, chromium: Browser) -> None:
    visitor = Visitor(chromium, server)
    for path in PLAIN:
        visitor.go(path)
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.slow("it waits for the script")
def test_pages_update_themselves_and_newer_jobs_are_announced(server: Server, chromium: Browser) -> None:
    server.queue.enqueue("email.send", lane="mail")
    visitor = Visitor(chromium, server)
    listed = visitor.open()
    listed.goto(visitor.base + "/jobs")
    page = visitor.go("/jobs/1")
    expect(page.locator("#story")).to_contain_text("ready")
    server.queue.enqueue("email.send", lane="mail")
    claim = server.queue.claim(lanes=["mail"], worker="a")
    assert claim is not None
    server.queue.settle(claim, Done())
    expect(page.locator("#story")).to_contain_text("done")
    listed.bring_to_front()
    expect(listed.locator("#newer")).to_have_text("1 newer")
    assert len(listed.locator("a.row").all()) == 1
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.slow("it waits for the script")
def test_output_of_a_running_job_appears_while_it_is_written(server: Server, chromium: Browser) -> None:
    server.queue.enqueue("a")
    claim = server.queue.claim(worker="w", lease=600)
    assert claim is not None
    visitor = Visitor(chromium, server)
    page = visitor.go("/jobs/1")
    for text in ("first line\n", "<b>second</b>\n"):
        server.queue.emit(claim, text)
        expect(page.locator("#output")).to_contain_text(text.strip())
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.slow("it uses a browser")
def test_keys_move_through_rows_and_change_the_theme(server: Server, chromium: Browser) -> None:
    server.queue.enqueue_many([{"kind": "a"}, {"kind": "b"}])
    visitor = Visitor(chromium, server, color_scheme="light")
    page = visitor.go("/jobs")
    for key in ("j", "j"):
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/1")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page = visitor.go("/flow")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    expect(page.locator("details.do[open]")).to_have_count(1)
    page.keyboard.press("/")
    page.wait_for_url("**/jobs#filter")
    expect(page.locator("#filter")).to_be_focused()
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.slow("it opens ten tabs")
def test_ten_tabs_load_and_share_one_stream(server: Server, chromium: Browser) -> None:
    visitor = Visitor(chromium, server)
    streams: list[str] = []
    tabs = []
    for _ in range(10):
        tab = visitor.open()
        tab.on("request", lambda request: streams.append(request.url) if request.url.endswith("/live") else None)
        tab.goto(visitor.base + "/flow")
        expect(tab.locator("h1")).to_have_text("Flow")
        tabs.append(tab)
    expect(tabs[0].locator("#live")).to_have_text("live")
    assert len(streams) == 1
    assert visitor.complaints == []
    visitor.context.close()


@pytest.mark.slow("it uses a browser")
def test_signing_in_with_a_token(server: Server, chromium: Browser) -> None:
    token = server.queue.admin.tokens.create("ada", roles=["read"]).text
    page = chromium.new_context().new_page()
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dashboard/")
    expect(page.locator("h1")).to_contain_text("Nothing needs you.")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("h1")).to_have_text("Sign in")
    page.context.close()
