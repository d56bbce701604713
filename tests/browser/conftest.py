from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.service.conftest import served, server
from tests.support.service import Server

__all__ = ["served", "server"]

# Only a hang reaches it.
expect.set_options(timeout=60_000)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Root needs no sandbox; the others keep Chromium from calling its own servers.
FLAGS = [
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
]


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The installed Chromium, one for each test process.

    It is closed after the tests of this folder: until then this thread has a running event loop.
    """
    if CHROMIUM is None:
        pytest.skip("needs the package chromium")
    # A home of its own: Chromium writes there whatever its profile is.
    home = tmp_path_factory.mktemp("home")
    with sync_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, env=environment)
        yield browser
        browser.close()


class Visitor:
    """A signed-in visitor, and everything that must not happen in a browser."""

    def __init__(self, chromium: Browser, server: Server, **options: Any) -> None:
        self.base = f"http://127.0.0.1:{server.port}/dashboard"
        self.context: BrowserContext = chromium.new_context(**options)
        self.complaints: list[str] = []
        token = server.queue.admin.tokens.create("browser", roles=["admin"]).text
        self.context.add_cookies([{"name": "holdfast_token", "value": token, "url": self.base}])
        self.page = self.open()

    def open(self) -> Page:
        """Open a tab."""
        page = self.context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: self._say(message.type, message.text))
        page.on("pageerror", lambda error: self._say("error", str(error)))
        page.on("dialog", lambda dialog: self._say("error", f"dialog {dialog.message}"))
        page.on("request", lambda request: self._requested(request.url))
        return page

    def _say(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def _requested(self, url: str) -> None:
        if not url.startswith(self.base):
            self.complaints.append(f"requested {url}")

    def go(self, path: str) -> Page:
        """Open a page of the dashboard."""
        answer = self.page.goto(self.base + path, wait_until="domcontentloaded")
        assert answer is not None
        assert answer.status == 200, (path, answer.status)
        return self.page

    def screenshot(self, path: Path) -> None:
        """Store a picture of the page."""
        self.page.screenshot(path=str(path))
