"""The chat page by keyboard, on a phone, in the dark; and its files."""

import hashlib
import re
from typing import Any

import pytest

from glmforge.deploy.serve.page import DIRECTORY as PAGE
from helpers.chat_server import HOLD, said, thought


def focused(opened: Any) -> str:
    return str(opened.page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')"))


def test_keys(opened: Any) -> None:
    page = opened.page
    opened.server.answers += [said("One"), said("Two")]
    assert focused(opened) == "input"
    page.keyboard.type("first")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second?")
    assert page.input_value("#input") == "first\nsecond?"
    page.keyboard.press("Enter")
    opened.finished(0)
    assert page.input_value("#input") == ""
    assert opened.server.asked[0]["messages"] == [{"role": "user", "content": "first\nsecond?"}]
    page.keyboard.press("ArrowUp")
    assert focused(opened) == "Edit message"
    page.keyboard.press("Escape")
    assert focused(opened) == "input"
    assert page.locator("article").count() == 2
    page.keyboard.press("ArrowUp")
    page.keyboard.type("!")
    page.keyboard.press("Enter")
    page.get_by_text("Two", exact=True).wait_for()
    assert opened.server.asked[1]["messages"][0]["content"] == "first\nsecond?!"


def test_single_keys_outside_of_fields(opened: Any) -> None:
    page = opened.page
    page.keyboard.type("?,n/")
    assert page.input_value("#input") == "?,n/"
    page.fill("#input", "")
    page.locator("#theme").focus()
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert focused(opened) == "theme"
    page.keyboard.press(",")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert focused(opened) == "search"


def test_everything_has_a_name(opened: Any) -> None:
    opened.server.answers.append(said("```python\nx = 1\n```\n\n| a |\n|---|\n| b |"))
    opened.ask("Go")
    opened.finished(0)
    nameless = """[...document.querySelectorAll('button, input, select, textarea, [role], dialog, nav, aside')].filter(
        (e) => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim()
                 || e.labels?.length
                 || ['announcer', 'notice', 'tools-error'].includes(e.id))).map((e) => e.outerHTML)"""
    assert opened.page.evaluate(nameless) == []
    assert opened.page.locator("#announcer").inner_text() == "Answer finished"


def test_a_phone_needs_no_scrolling_sideways(opened: Any) -> None:
    page = opened.page
    page.set_viewport_size({"width": 360, "height": 700})
    opened.load()
    wide = f"{'x' * 300} `{'y' * 200}`\n\n```\n{'z' * 400}\n```\n\n|{'a|' * 20}\n|{'-|' * 20}\n|{'wide cell|' * 20}"
    opened.server.answers.append([*thought("w" * 300), *said(wide)])
    opened.ask("q" * 200)
    opened.finished(0)
    page.locator("summary").click()
    for box in ("document.documentElement", "document.querySelector('#scroll')"):
        assert page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") == 0
    for part in (".code pre", ".table"):  # these scroll by themselves
        reached = f"(part => (part.scrollLeft = 50, part.scrollLeft))(document.querySelector('{part}'))"
        overflow = f"getComputedStyle(document.querySelector('{part}')).overflowX"
        assert (page.evaluate(reached), page.evaluate(overflow)) == (50, "auto")
    assert not page.locator("#sidebar").is_visible()
    page.click("#menu")
    assert page.locator(".row-title").is_visible()
    page.keyboard.press("Escape")
    opened.expect(page.locator("#sidebar")).to_be_hidden()
    assert focused(opened) == "menu"


def test_the_view_follows_unless_it_is_scrolled(opened: Any) -> None:
    page = opened.page
    opened.server.answers += [said("line\n\n" * 100), [*said("more\n\n" * 50), "wait", *said("end " * 50), HOLD]]
    opened.ask("Go")
    opened.finished(0)
    opened.ask("Go on")
    page.get_by_text("more").last.wait_for()
    page.evaluate("document.querySelector('#scroll').scrollTop = 0")
    page.locator("#latest").wait_for()
    opened.server.go.set()
    page.get_by_text("end end").wait_for(state="attached")
    assert page.evaluate("document.querySelector('#scroll').scrollTop") == 0
    page.click("#latest")
    page.locator("#latest").wait_for(state="hidden")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(opened: Any, scheme: str) -> None:
    page = opened.page
    page.emulate_media(color_scheme=scheme)
    back = "getComputedStyle(document.body).backgroundColor"
    system = page.evaluate(back)
    assert (int(re.findall(r"\d+", system)[0]) < 128) == (scheme == "dark")
    colours = {}
    for _ in range(3):
        colours[page.evaluate("document.documentElement.dataset.theme")] = page.evaluate(back)
        page.click("#theme")
    assert colours["auto"] == colours[scheme] == system
    assert colours["light"] != colours["dark"]
    page.click("#theme")
    opened.load()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_link_leaves_no_trace(opened: Any) -> None:
    opened.server.answers.append(said("[there](https://example.org) ![picture](https://example.org/a.png)"))
    opened.ask("Go")
    links = opened.finished(0).locator(".markdown a")
    assert links.count() == 2
    assert links.first.get_attribute("rel") == "noopener noreferrer nofollow"


def test_own_files_are_short_and_load_nothing() -> None:
    texts = {file.name: file.read_text() for file in sorted(PAGE.iterdir()) if file.is_file()}
    assert sum(len(text.splitlines()) for text in texts.values()) < 1500
    for name, text in texts.items():
        assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|\beval\b|new Function", text), name
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == [], name
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", texts["index.html"])


def test_kept_libraries_are_as_published() -> None:
    listed = (PAGE / "vendor" / "VERSIONS.txt").read_text().split("sha256\n")[1].splitlines()
    sums = {name: checksum for checksum, name in map(str.split, listed)}
    assert sums == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (PAGE / "vendor").glob("*.js")}
    assert {f"{name.split('.')[0]}.LICENSE.txt" for name in sums} == {
        file.name for file in (PAGE / "vendor").glob("*LICENSE.txt")
    }
