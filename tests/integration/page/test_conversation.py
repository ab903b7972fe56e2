"""A conversation on the chat page: streamed, stopped, answered again, edited, continued, kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.chat_server import CUT, END, HOLD, WAIT, Refusal, called, said, thought


def contents(request: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request["messages"]]


def test_an_answer_is_streamed_with_its_thought_folded(opened: Any) -> None:
    opened.server.answers.append([*thought("Two and ", "two."), WAIT, *said("It is ", "**4**."), WAIT])
    opened.ask("2 + 2?")
    summary = opened.page.locator("article.assistant summary")
    summary.filter(has_text="Thinking · ").wait_for()
    assert opened.page.locator("#send").is_hidden()
    opened.server.go.set()
    answer = opened.finished(0)
    assert answer.locator("strong").inner_text() == "4"
    assert summary.inner_text().startswith("Thought for ")
    assert not answer.locator(".thought").is_visible()
    summary.click()
    opened.expect(answer.locator(".thought")).to_have_text("Two and two.")
    assert "4 tokens" in answer.locator(".facts").inner_text()
    assert "prompt 7" in answer.locator(".facts").inner_text()
    assert opened.page.evaluate("document.activeElement.tagName") == "SUMMARY"
    (request,) = opened.server.asked
    assert request["stream"] is True
    assert request["model"] == "glm-test"
    assert contents(request) == [("user", "2 + 2?")]


def test_results_of_tools_continue_the_conversation(opened: Any) -> None:
    calls = [*called("weather", '{"ci', 'ty": "Oslo"}'), *called("clock", "{}", index=1)]
    opened.server.answers += [thought("Ask.") + calls, said("Rain at noon.")]
    opened.ask("How is it?")
    answer = opened.finished(0)
    assert answer.locator(".call-name").all_inner_texts() == ["weather", "clock"]
    assert '"city": "Oslo"' in answer.locator("pre").first.inner_text()
    answer.get_by_label("Result of weather").fill("rain")
    answer.get_by_text("Send results").click()  # one is missing: the field that lacks it is focused
    assert opened.page.evaluate("document.activeElement.getAttribute('aria-label')") == "Result of clock"
    answer.get_by_label("Result of clock").fill("12:00")
    answer.get_by_text("Send results").click()
    opened.finished(1)
    _, assistant, *tools = opened.server.asked[1]["messages"]
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == ["weather", "clock"]
    assert json.loads(assistant["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert assistant["reasoning_content"] == "Ask."
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in tools] == [
        ("tool", "call_0", "rain"),
        ("tool", "call_1", "12:00"),
    ]
    assert answer.locator(".result pre").all_inner_texts() == ["rain", "12:00"]
    opened.server.answers.append(said("Sun."))
    answer.get_by_label("Edit results").click()
    answer.get_by_label("Result of weather").fill("sun")
    answer.get_by_text("Send results").click()
    opened.page.get_by_text("Sun.").wait_for()
    assert answer.locator(".versions").inner_text() == "2 / 2"


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(opened: Any, how: str) -> None:
    opened.server.answers += [[*said("Half"), HOLD], said("Whole")]
    opened.ask("Go")
    opened.page.get_by_text("Half").wait_for()
    if how == "button":
        opened.page.click("#stop")
    else:
        opened.page.keyboard.press("Escape")
    answer = opened.finished(0)
    assert "stopped" in answer.locator(".facts").inner_text()
    assert opened.page.evaluate("document.activeElement.id") == "input"
    opened.ask("Again")
    opened.finished(1)
    assert contents(opened.server.asked[1]) == [("user", "Go"), ("assistant", "Half"), ("user", "Again")]


def test_regenerate_keeps_versions(opened: Any) -> None:
    opened.server.answers += [said("First"), said("Second")]
    opened.ask("Go")
    opened.finished(0).get_by_label("Regenerate").click()
    opened.page.get_by_text("Second").wait_for()
    answer = opened.finished(0)
    assert contents(opened.server.asked[1]) == [("user", "Go")]
    assert answer.locator(".versions").inner_text() == "2 / 2"
    answer.get_by_label("Version before").click()
    opened.page.get_by_text("First", exact=True).wait_for()
    assert opened.page.locator("article.assistant").count() == 1


def test_an_edit_branches_the_conversation(opened: Any) -> None:
    opened.server.answers += [said("A1"), said("A2"), said("B1")]
    opened.ask("a")
    opened.finished(0)
    opened.ask("more")
    opened.finished(1)
    question = opened.page.locator("article.user").first
    question.hover()
    question.get_by_label("Edit message").click()
    question.get_by_label("Edit message").fill("b")
    question.get_by_label("Edit message").press("Enter")
    opened.page.get_by_text("B1").wait_for()
    opened.finished(0)
    assert contents(opened.server.asked[2]) == [("user", "b")]
    assert opened.page.locator("article").count() == 2
    opened.page.locator("article.user").get_by_label("Version before").click()
    opened.page.get_by_text("A2").wait_for()
    assert opened.page.locator(".bubble").all_inner_texts() == ["a", "more"]


@pytest.mark.parametrize("end", [CUT, END])
def test_a_lost_connection_is_continued(opened: Any, end: str) -> None:
    opened.server.answers += [[*said("Half of "), WAIT, end], said("it.")]
    opened.ask("Go")
    opened.page.get_by_text("Half of").wait_for()
    opened.server.go.set()
    opened.page.locator(".fault").get_by_text("connection was lost").wait_for()
    opened.page.get_by_text("Continue").click()
    assert opened.finished(0).locator(".markdown").last.inner_text() == "Half of it."
    request = opened.server.asked[1]
    assert request["continue_final_message"] is True
    assert contents(request)[-1] == ("assistant", "Half of ")


def test_a_busy_server_is_asked_again(opened: Any) -> None:
    opened.server.answers += [Refusal(429, "too many requests", {"Retry-After": "7"}), said("Now")]
    opened.ask("Go")
    fault = opened.page.locator(".fault")
    fault.get_by_text("too many requests").wait_for()
    assert "wait 7 s" in fault.inner_text()
    fault.get_by_text("Try again").click()
    answer = opened.finished(0)
    assert answer.locator(".markdown").last.inner_text() == "Now"
    assert answer.locator(".versions").count() == 0  # nothing of the refusal is left


def test_an_error_in_the_middle(opened: Any) -> None:
    opened.server.answers.append([*said("Well"), {"error": {"message": "out of memory"}}])
    opened.ask("Go")
    opened.page.locator(".fault").get_by_text("out of memory").wait_for()


def test_a_key_is_asked_for_and_not_kept_for_long(opened: Any) -> None:
    opened.server.key = "secret"
    opened.load()
    opened.server.answers.append(said("Hello"))
    opened.page.get_by_label("API key of this server").wait_for()
    opened.ask("Go")
    field = opened.page.locator(".fault").get_by_label("API key")
    field.fill("wrong")
    field.press("Enter")
    field = opened.page.locator(".fault").get_by_label("API key")
    opened.expect(field).to_have_value("")
    field.fill("secret")
    field.press("Enter")
    opened.finished(0)
    assert opened.server.keys == ["", "Bearer wrong", "Bearer secret"]
    kept = opened.page.evaluate("JSON.stringify(localStorage) + document.cookie")
    assert "secret" not in kept
    assert opened.page.evaluate("sessionStorage.getItem('glmforge.key')") == "secret"


def test_settings_reach_the_request(opened: Any) -> None:
    opened.page.click("#tune")
    dialog = opened.page.locator("#settings")
    values = {"System prompt": "Be brief.", "Temperature": "0.5", "Top p": "0.9", "Max tokens": "32", "Seed": "7"}
    for label, value in values.items():
        dialog.get_by_label(label).fill(value)
    dialog.get_by_label("Think before answering").uncheck()
    dialog.get_by_label("Tools").fill('[{"name": ')
    assert dialog.get_by_role("alert").inner_text().startswith("Not JSON")
    dialog.get_by_label("Tools").fill('[{"name": "clock", "parameters": {"type": "object"}}]')
    assert dialog.get_by_role("alert").inner_text() == ""
    dialog.get_by_text("Done").click()
    opened.server.answers.append(said("ok"))
    opened.ask("Go")
    opened.finished(0)
    (request,) = opened.server.asked
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    expected = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 32, "seed": 7, "tools": [tool]}
    assert {name: request[name] for name in expected} == expected
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    assert contents(request) == [("system", "Be brief."), ("user", "Go")]


def test_conversations_outlive_a_reload(opened: Any) -> None:
    opened.server.answers += [thought("Hm.") + said("Apples"), said("Pears"), [*said("Half"), HOLD]]
    opened.ask("About fruit")
    opened.finished(0)
    opened.page.click("#new")
    opened.ask("About trees")
    opened.finished(0)
    opened.load()
    assert opened.page.locator(".row-title").all_inner_texts() == ["About trees", "About fruit"]
    opened.page.get_by_text("About fruit").click()
    assert opened.finished(0).locator(".markdown").last.inner_text() == "Apples"
    opened.ask("More")
    opened.page.get_by_text("Half").wait_for()
    opened.load()  # in the middle of an answer
    opened.page.get_by_text("interrupted").wait_for()


def test_conversations_are_searched_renamed_deleted_exported(opened: Any, tmp_path: Path) -> None:
    opened.server.answers += [said("Apples"), said("Pears")]
    opened.ask("One")
    opened.finished(0)
    opened.page.click("#new")
    opened.ask("Two")
    opened.finished(0)
    titles = opened.page.locator(".row-title")
    opened.page.fill("#search", "apple")
    assert titles.all_inner_texts() == ["One"]
    opened.page.fill("#search", "")
    titles.filter(has_text="One").focus()
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Enter")
    opened.page.get_by_label("Title", exact=True).fill("Fruit")
    opened.page.keyboard.press("Enter")
    assert titles.all_inner_texts() == ["Two", "Fruit"]
    with opened.page.expect_download() as download:
        opened.page.get_by_label("Export Fruit").dispatch_event("click")
    assert download.value.suggested_filename == "Fruit.md"
    download.value.save_as(tmp_path / "one.md")
    assert "## You\n\nOne\n\n## glm-test\n\nApples" in (tmp_path / "one.md").read_text()
    opened.page.get_by_label("Delete Two").dispatch_event("click")
    assert titles.all_inner_texts() == ["Fruit"]
    opened.page.get_by_text("Undo").click()
    assert titles.all_inner_texts() == ["Two", "Fruit"]
    opened.page.get_by_label("Delete Two").dispatch_event("click")
    opened.load()
    assert titles.all_inner_texts() == ["Fruit"]
    with opened.page.expect_download() as download:
        opened.page.click("#export-all")
    download.value.save_as(tmp_path / "all.json")
    assert [one["title"] for one in json.loads((tmp_path / "all.json").read_text())] == ["Fruit"]


def test_a_full_disk_is_said(opened: Any) -> None:
    opened.page.evaluate(
        "() => { IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError'); } }"
    )
    opened.server.answers.append(said("Hello"))
    opened.ask("Go")
    assert opened.finished(0).locator(".markdown").last.inner_text() == "Hello"
    assert "storage is full" in opened.page.locator("#notice").inner_text()
