"""Texts that would run a script, wherever a model, a server or a user may put them: the page shows them, and no more.

The fixture's last check says that nothing has run, opened, violated the policy or been asked of others.
"""

from typing import Any

import pytest

from helpers.chat_server import Refusal, said

RUN = "window.canary=1"
TEXTS = [
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src='http://outside.invalid/a.png' onload={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src='javascript:parent.{RUN}'></iframe>",
    f"[press](javascript:{RUN})",
    f"[press](JaVaScRiPt&colon;{RUN})",
    f"[press](<java\tscript:{RUN}>)",
    f"[press](data:text/html,<script>opener.{RUN}</script>)",
    f"[press](vbscript:{RUN})",
    f"<javascript:{RUN}>",
    f'![x](javascript:{RUN} "t")',
    "![x](http://outside.invalid/pixel.png?secret)",
    f'[a](http://a.invalid/"onmouseover="{RUN})',
    f'[a](http://a.invalid "x\\" autofocus onfocus={RUN} y=\\"")',
    f"[press][ref]\n\n[ref]: javascript:{RUN}",
    f"`<img src=x onerror={RUN}>`",
    f"```html\n<script>{RUN}</script>\n```",
    f'```"><img/src=x/onerror={RUN}>\ncode\n```',
    f"```js' onclick='{RUN}\ncode\n```",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}></style></mglyph></table></mtext></math>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'></noscript>",
    f"<form action=javascript:{RUN}><button>press</button></form><input autofocus onfocus={RUN}>",
    f"<a href='j&#97;vascript:{RUN}'>press</a><base href=javascript:/>",
    f"<style>@import 'http://outside.invalid/a.css';</style><link rel=stylesheet href=http://outside.invalid/a.css>"
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    f"<object data=javascript:{RUN}></object><embed src=javascript:{RUN}>",
    f"<a id=nodes name=canary href=http://outside.invalid>x</a><img name=getElementById><form id=messages>"
    f"<details open ontoggle={RUN}>",
    f"</textarea></title></script><script>{RUN}</script>\u2028\x00{RUN}//--><!--",
    f"| a |\n|---|\n| <img src=x onerror={RUN}> <br onclick={RUN}> |",
    f"- [x] <input type=image src=x onerror={RUN}>\n\n[\u202ea](\x01javascript:{RUN})",
]


def call_of(text: str) -> dict[str, Any]:
    call = {"index": 0, "id": text, "function": {"name": text, "arguments": '{"a": ' + repr(text) + "}"}}
    return {"tool_calls": [call]}


def test_there_are_thirty() -> None:
    assert len(set(TEXTS)) >= 30


def test_hostile_texts_do_nothing(opened: Any) -> None:
    """Each as question, title, thought, answer, tool's name, arguments, result and label of code, model and error."""
    page = opened.page
    for number, text in enumerate(TEXTS):
        opened.server.models = [text]
        steps = [{"reasoning_content": text}, {"content": f"{text}\n\n~~~{text}\n{text}\n~~~\n"}, call_of(text)]
        opened.server.answers += [steps, [*said(text), {"error": {"message": text}}]]
        page.click("#new")
        opened.ask(text)
        answer = opened.finished(0)
        answer.locator("summary").click()
        answer.locator(".thought .block").first.wait_for()
        answer.get_by_placeholder("What the tool returned").fill(text)
        answer.get_by_text("Send result").click()
        page.locator(".fault").wait_for()
        links = page.evaluate("[...document.querySelectorAll('.markdown a')].map((a) => a.href)")
        assert [link for link in links if not link.startswith(("http://", "https://", "mailto:"))] == [], text
        inside = "#messages :is(script, img, iframe, object, embed, style, link, meta, form, base, svg:not(.icon))"
        assert page.locator(inside).count() == 0, text
        on = "[...document.querySelectorAll('*')].flatMap((e) => [...e.attributes]).filter((a) => /^on/i.test(a.name))"
        assert page.evaluate(f"{on}.length") == 0, text
        opened.check_harmless()
        assert page.locator(".row").count() == number + 1
    opened.load()  # kept, and shown again
    assert page.locator(".row").count() == len(TEXTS)


@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[1]])
def test_hostile_refusals_and_lists_of_models(opened: Any, text: str) -> None:
    opened.server.models = [text, "other"]
    opened.load()
    assert opened.page.locator("#model option").first.inner_text() == text
    opened.server.answers.append(Refusal(400, text))
    opened.ask("Go")
    assert opened.page.locator(".fault p").first.inner_text() == text


@pytest.mark.parametrize(
    "chunk",
    [{"content": {"a": 1}}, {"content": 5}, {"tool_calls": "x"}, {"tool_calls": [{"function": None}, None]}, "null"],
    ids=repr,
)
def test_chunks_of_another_form_end_in_an_answer_or_an_error(opened: Any, chunk: Any) -> None:
    opened.server.answers.append([*said("Well"), {"choices": chunk} if chunk == "null" else chunk])
    opened.ask("Go")
    answer = opened.page.locator("article.assistant:not(.live)")
    answer.get_by_text("Well").wait_for()
    assert opened.page.locator("#send").is_visible()


@pytest.mark.parametrize("text", [">" * 20_000, "[" * 5_000, "*a " * 5_000, "|a" * 2_000 + "\n" + "|-" * 999], ids=len)
def test_texts_that_wear_a_parser_out_are_shown(opened: Any, text: str) -> None:
    opened.server.answers.append(said(text))
    opened.ask("Go")
    assert opened.finished(0).locator(".markdown").last.inner_text().strip()
