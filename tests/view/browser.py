"""What the tests of the page share: its server in a thread, and a browser that notes what it must not do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page

from prl.network import listener, origin_of
from prl.view.api import Api
from prl.view.listen import guard_of
from prl.view.runs import Runs
from prl.view.server import ViewServer

CHROMIUM = Path("/usr/bin/chromium")
"""Debian's; Playwright's own is not downloaded."""
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
WAIT_MS = 60_000.0
"""A starved machine is slow; nothing waits that long where it is not."""


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The page of ``path``, by a server in a thread of its own that looks at files often; its URL."""
    listening = listener("127.0.0.1", 0)
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        server = ViewServer(Api(Runs(path)), guard_of("127.0.0.1", listening), listening, look_every_s=0.05)
        await server.open()
        ends = asyncio.Event()
        opened.set_result((asyncio.get_running_loop(), ends))
        await ends.wait()
        await server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, ends = opened.result(timeout=60)
    try:
        yield f"{origin_of(listening)}/"
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()


class Visit:
    """One page that is open. ``troubles`` is what its console, errors, dialogs and requests have to tell."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.url, self.troubles = url, list[str]()
        self._context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        self.may_be_gone = False
        self.page = self._tab()

    def _tab(self) -> Page:
        page = self._context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self._asked(request.url))
        return page

    def another(self, run: str, rest: str) -> Page:
        """One more tab of the same browser, there."""
        page = self._tab()
        page.goto(f"{self.url}#/{quote(run, safe='')}{rest}")
        page.locator(".progress b").wait_for()
        return page

    def _heard(self, message: Any) -> None:
        if message.type in {"error", "warning"} and not self.may_be_gone:
            self.troubles.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:")):
            self.troubles.append(f"asked {url}")

    def open(self, run: str = "", rest: str = "") -> Page:
        """Load the page anew, there."""
        self.page.goto(f"{self.url}#/{quote(run, safe='')}{rest}")
        self.settled()
        return self.page

    def go(self, run: str, rest: str) -> Page:
        """Go there within the page that is open."""
        self.page.evaluate("hash => { location.hash = hash }", f"#/{quote(run, safe='')}{rest}")
        self.settled()
        return self.page

    def settled(self) -> None:
        """Until nothing loads."""
        self.page.locator("#panel > *").first.wait_for()
        self.page.locator(".loading").first.wait_for(state="detached")
        self.page.locator("[aria-busy]").first.wait_for(state="detached")

    def close(self) -> None:
        """Let go of it."""
        self._context.close()
