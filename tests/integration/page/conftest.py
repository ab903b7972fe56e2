"""The chat page in a headless Chromium, before a server whose answers are written beforehand."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
for _name in ("uvicorn", "starlette"):
    pytest.importorskip(_name, reason=f"{_name} is not installed")

from helpers.chat_server import ChatServer, chat_server  # noqa: E402

CANARY = """
window.violations = [];
window.canary = 0;
addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""
STORED = """() => new Promise((resolve, reject) => {
    const opening = indexedDB.open("glmforge", 1);
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
        const count = opening.result.transaction("conversations").objectStore("conversations").count();
        count.onsuccess = () => (opening.result.close(), resolve(count.result));
    };
})"""


@dataclass
class Opened:
    """The page, and what must not have happened to it."""

    page: Any
    server: ChatServer
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def expect(self) -> Any:
        return sync_api.expect

    def load(self) -> None:
        """Open or reload it. What the page has asked the browser to keep by then is kept: reads wait for writes."""
        if self.page.url.startswith(self.server.url):
            self.page.evaluate(STORED)
        self.page.goto(self.server.url)
        self.page.wait_for_selector("html[data-ready]")

    def ask(self, text: str) -> None:
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")

    def finished(self, number: int) -> Any:
        """The answer at this place, once it has ended."""
        answer = self.page.locator("article.assistant").nth(number)
        answer.locator("[aria-label=Regenerate]").wait_for()
        return answer

    def check_harmless(self) -> None:
        """No script has run, no dialog opened, no policy been violated, nothing been asked of others."""
        assert self.page.evaluate("window.canary") == 0
        assert self.page.evaluate("window.violations") == []
        assert self.dialogs == []
        assert self.faults == []
        assert [url for url in self.requests if not url.startswith((self.server.url, "blob:"))] == []


@pytest.fixture(scope="module")  # its event loop runs in this thread: other modules need their own
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """A fresh profile on an empty page; at the end it has been harmless."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.add_init_script(CANARY)
    with chat_server() as server:
        one = Opened(context.new_page(), server)
        one.page.set_default_timeout(20_000)
        one.page.on("request", lambda request: one.requests.append(request.url))
        one.page.on("dialog", lambda dialog: (one.dialogs.append(dialog.message), dialog.dismiss()))
        one.page.on("pageerror", lambda error: one.faults.append(str(error)))
        context.on("page", lambda page: one.faults.append(f"a window was opened: {page.url}"))
        one.load()
        yield one
        one.check_harmless()
        context.close()
