"""Chat completions: what a body asks for, and answers that OpenAI's own client understands."""

import json
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)

from glmforge.generate.answer import Update
from glmforge.protocol.chat import ChatWriter, parse
from glmforge.protocol.openai import error
from glmforge.protocol.request import ApiError, Ask
from helpers.replies import Served, answered, streamed, updates_of

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
REPLY = (
    "\n<think>which é</think>\nLet me see."
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)


def ask(served: Served, **body: Any) -> Ask:
    return parse({"model": "glm", "messages": HI} | body, served)


def prompt(served: Served, **body: Any) -> str:
    return served.tokenizer.decode(ask(served, **body).prompt)


def refused(served: Served, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ask(served, **body)
    assert "\n" not in str(caught.value)
    assert error(caught.value)["error"]["message"] == str(caught.value)
    return caught.value


def functions_of(message: ChatCompletionMessage) -> list[ChatCompletionMessageFunctionToolCall]:
    calls = message.tool_calls or []
    found = [call for call in calls if call.type == "function"]
    assert len(found) == len(calls)
    return found


def test_the_prompt_is_the_templates(served: Served) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}]},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"days": 3}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "warm"},
    ]  # fmt: skip
    text = prompt(served, messages=messages, tools=TOOLS)
    assert text.endswith(
        "<|system|>\nBe brief<|user|>\nhi<|assistant|>\n<think>hm</think>\n<tool_call>weather\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call><|observation|>\n<tool_response>\nwarm\n</tool_response><|assistant|>"
    )
    assert '{"type": "function", "function": {"name": "weather"' in text


def test_settings(served: Served) -> None:
    found = ask(
        served, temperature=0, top_p=0, n=3, seed=-1, stop="x", logit_bias={"7": -100}, presence_penalty=1,
        frequency_penalty=2.0, logprobs=True, top_logprobs=2, top_k=-1, priority=-3, max_completion_tokens=7, timeout=2,
        stream=True, stream_options={"include_usage": True}, request_id="mine", user="me", unheard_of={"a": 1},
        thinking={"type": "disabled"}, model="other",
    )  # fmt: skip
    params = found.params
    assert (params.temperature, params.num_samples, params.seed, params.stop) == (0, 3, 2**63 - 1, ["x"])
    assert 0 < params.top_p < 1e-6
    assert (params.logit_bias, params.logprobs, params.top_k, params.max_new_tokens) == ({7: -100}, 2, 0, 7)
    assert (found.priority, found.timeout, found.id, found.model) == (-3, 2, "mine", "other")
    assert found.stream
    assert found.include_usage
    defaults = ask(served)
    assert (defaults.params.temperature, defaults.params.max_new_tokens, defaults.model) == (1.0, 256, "glm")
    assert ask(served, max_tokens=10**6).params.max_new_tokens == 2048 - len(defaults.prompt)
    assert set(ask(served, ignore_eos=True).params.banned_tokens) == set(served.tokenizer.stop_ids)
    assert ask(served, stop_token_ids=[5]).params.stop_ids == (*served.tokenizer.stop_ids, 5)


@pytest.mark.parametrize(
    ("said", "end", "budget"),
    [
        ({}, "<|assistant|>", None),
        ({"thinking": {"type": "disabled"}}, "/nothink<|assistant|>\n<think></think>", None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think></think>", None),
        ({"reasoning_effort": "none"}, "<think></think>", None),
        ({"reasoning_effort": "low", "max_tokens": 100}, "hi<|assistant|>\n<think>", 20),
        ({"reasoning_effort": "high"}, "hi<|assistant|>", None),
        ({"thinking_token_budget": 5}, "hi<|assistant|>\n<think>", 5),
        ({"thinking_token_budget": 0}, "<think></think>", None),
        ({"stop": "x"}, "hi<|assistant|>\n<think>", 256),
        ({"response_format": {"type": "json_object"}, "max_tokens": 9}, "hi<|assistant|>\n<think>", 9),
        ({"stop": "x", "thinking": {"type": "disabled"}}, "<think></think>", None),
    ],
)
def test_thinking(served: Served, said: dict[str, Any], end: str, budget: int | None) -> None:
    found = ask(served, **said)
    assert served.tokenizer.decode(found.prompt).endswith(end)
    assert found.reasoning_budget == budget
    assert found.reply is not None
    assert found.reply.in_thought == (budget is not None)


def test_thoughts_are_kept_where_the_template_can(served: Served) -> None:
    messages = [
        *HI,
        {"role": "assistant", "content": "a", "reasoning_content": "why"},
        {"role": "user", "content": "b"},
    ]
    assert "why" not in prompt(served, messages=messages)
    for said in ({"thinking": {"clear_thinking": False}}, {"chat_template_kwargs": {"clear_thinking": False}}):
        assert "<think>why</think>\na<|user|>" in prompt(served, messages=messages, **said)


def test_forced_calls_are_begun(served: Served) -> None:
    named = ask(served, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    assert served.tokenizer.decode(named.prompt).endswith("\n<think></think>\n<tool_call>weather\n")
    assert named.params.grammar is not None
    assert named.reply is not None
    assert named.prompt[-len(named.reply.prefix) :] == named.reply.prefix
    any_of_them = ask(served, tools=TOOLS, tool_choice="required")
    assert served.tokenizer.decode(any_of_them.prompt).endswith("\n<think></think>\n<tool_call>")
    assert any_of_them.params.grammar is not None
    never = ask(served, tools=TOOLS, tool_choice="none")
    assert never.params.banned_tokens == (served.tokenizer.special_id("<tool_call>"),)
    assert never.reply is not None
    assert not never.reply.tools
    assert ask(served, tools=TOOLS, parallel_tool_calls=False).params.stop_ids


def test_forced_calls_without_grammars(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glmforge.protocol.prompt.grammars_are_there", lambda: False)
    named = ask(served, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    assert named.params.stop_ids[-1] == served.tokenizer.special_id("</tool_call>")
    any_of_them = ask(served, tools=TOOLS, tool_choice="required")
    assert any_of_them.params.first_tokens == [served.tokenizer.encode("weather\n")[0]]
    assert not any_of_them.params.stop_ids


def test_a_forced_call_is_answered(served: Served) -> None:
    wanted = ask(served, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    rest = "<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>"
    ids = served.tokenizer.encode_with_special_tokens(rest)
    updates = list(updates_of(served.tokenizer, ids, finished="length"))
    body = answered(ChatWriter(wanted, served, "x"), iter(updates))
    assert body["choices"][0]["message"]["tool_calls"][0]["function"] == {
        "name": "weather", "arguments": '{"city": "Bern"}'
    }  # fmt: skip


def test_prefill(served: Served) -> None:
    messages = [*HI, {"role": "assistant", "content": "The answer is ("}]
    found = ask(served, messages=messages, continue_final_message=True)
    assert served.tokenizer.decode(found.prompt).endswith("<think></think>\nThe answer is (")
    body = answered(ChatWriter(found, served, "x"), updates_of(served.tokenizer, " B)"))
    assert body["choices"][0]["message"]["content"] == " B)"


def test_schemas(served: Served) -> None:
    assert ask(served, response_format={"type": "text"}).params.json_schema is None
    assert ask(served, response_format={"type": "json_object"}).params.json_schema == {"type": "object"}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    assert ask(served, response_format=wanted).params.json_schema == SCHEMA
    assert ask(served, response_format=wanted, tools=TOOLS, tool_choice="none").params.json_schema == SCHEMA


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
         "messages[0].content[0].type"),
        ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"temperature": 3}, "temperature"), ({"temperature": "1"}, "temperature"), ({"top_p": True}, "top_p"),
        ({"n": 0}, "n"), ({"n": 1.5}, "n"), ({"max_tokens": 0}, "max_tokens"), ({"stop": [1]}, "stop[0]"),
        ({"stop": ["" ]}, None), ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"), ({"stream": "yes"}, "stream"),
        ({"audio": {"voice": "x"}}, "audio"), ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{}]}, "functions"), ({"guided_json": {}}, "guided_json"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"tools": TOOLS * 2}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a\nb"}}]}, "tools[0].function.name"),
        ({"tools": TOOLS * 1025}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(served: Served, body: dict[str, Any], param: str | None) -> None:
    refusal = refused(served, **body)
    assert (refusal.status, refusal.param) == (400, param)


def test_unknown_models_and_long_prompts(served: Served) -> None:
    unknown = refused(served, model="gpt")
    assert (unknown.status, error(unknown)["error"]["code"]) == (404, "model_not_found")
    long = refused(served, messages=[{"role": "user", "content": "word " * 3000}])
    assert (long.status, long.code) == (400, "context_length_exceeded")


def test_a_reply_with_everything(served: Served) -> None:
    wanted = ask(served, tools=TOOLS, logprobs=True, top_logprobs=2)
    updates = list(updates_of(served.tokenizer, REPLY, top=2, num_cached=5))
    body = ChatCompletion.model_validate(answered(ChatWriter(wanted, served, "chatcmpl-1"), iter(updates)))
    (choice,) = body.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.model_extra == {"reasoning_content": "which é"}
    called = [(one.function.name, json.loads(one.function.arguments)) for one in functions_of(choice.message)]
    assert called == [("weather", {"city": "Zürich", "days": 3})]
    assert body.usage is not None
    assert (body.usage.prompt_tokens, body.usage.completion_tokens) == (len(wanted.prompt), len(updates))
    assert body.usage.prompt_tokens_details is not None
    assert body.usage.prompt_tokens_details.cached_tokens == 5
    assert body.usage.completion_tokens_details is not None
    assert 3 < (body.usage.completion_tokens_details.reasoning_tokens or 0) < len(updates)
    assert choice.logprobs is not None
    tokens = choice.logprobs.content or []
    assert len(tokens) == len(updates) - 1
    assert b"".join(bytes(one.bytes or ()) for one in tokens).decode() == REPLY
    assert len(tokens[0].top_logprobs) == 2


def test_the_stream_builds_the_same_reply(served: Served) -> None:
    options = {"tools": TOOLS, "n": 2, "logprobs": True}
    wanted = ask(served, stream=True, stream_options={"include_usage": True}, **options)
    writer = ChatWriter(wanted, served, "chatcmpl-1")
    both = [updates_of(served.tokenizer, REPLY, top=0, sample=0), updates_of(served.tokenizer, "Bye", top=0, sample=1)]
    updates = [update for one in both for update in one]
    events = streamed(writer, iter(updates))
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for event in events:
        assert event.name is None
        assert json.loads(json.dumps(event.data)) == event.data
        state.handle_chunk(ChatCompletionChunk.model_validate(event.data))
    final = state.get_final_completion()
    whole = ChatCompletion.model_validate(
        answered(ChatWriter(ask(served, **options), served, "chatcmpl-1"), iter(updates))
    )
    for got, due in zip(final.choices, whole.choices, strict=True):
        assert (got.finish_reason, got.message.content) == (due.finish_reason, due.message.content)
        for mine, other in zip(functions_of(got.message), functions_of(due.message), strict=True):
            assert (mine.id, mine.function.name) == (other.id, other.function.name)
            assert json.loads(mine.function.arguments) == json.loads(other.function.arguments)
        assert got.logprobs is not None
        assert due.logprobs is not None
        assert [one.token for one in got.logprobs.content or ()] == [one.token for one in due.logprobs.content or ()]
    assert final.usage == whole.usage
    pieces = [event.data["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(one.get("reasoning_content", "") for one in pieces) == "which é"
    assert len([one for one in pieces if "tool_calls" in one]) > 5


def test_ends(served: Served) -> None:
    plain = ask(served, thinking={"type": "disabled"}, stop=["END"])
    cut = answered(ChatWriter(plain, served, "x"), updates_of(served.tokenizer, "ok END", stop=["END"]))
    assert (cut["choices"][0]["message"]["content"], cut["choices"][0]["stop_reason"]) == ("ok", "END")
    assert cut["choices"][0]["finish_reason"] == "stop"
    long = answered(ChatWriter(plain, served, "x"), updates_of(served.tokenizer, "ok", finished="length"))
    assert (long["choices"][0]["finish_reason"], long["choices"][0]["stop_reason"]) == ("length", None)
    empty = answered(ChatWriter(plain, served, "x"), updates_of(served.tokenizer, ""))
    assert empty["choices"][0]["message"]["content"] == ""
    ChatCompletion.model_validate(empty)
    half = REPLY[: REPLY.index("ürich")]
    unwhole = answered(ChatWriter(ask(served, tools=TOOLS), served, "x"), updates_of(served.tokenizer, half))
    assert unwhole["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in unwhole["choices"][0]["message"]
    failing = ChatWriter(plain, served, "x")
    with pytest.raises(ApiError, match="the grammar failed"):
        failing.update(Update(0, 0, None, "error", error="the grammar failed"))


def test_what_a_client_hands_back_is_what_was_said(served: Served) -> None:
    """An answer goes into the next prompt as the model has written it."""
    wanted = ask(served, tools=TOOLS)
    body = answered(ChatWriter(wanted, served, "x"), updates_of(served.tokenizer, REPLY))
    message = body["choices"][0]["message"]
    again = ask(served, tools=TOOLS, messages=[*HI, message, {"role": "tool", "content": "warm"}])
    assert again.prompt[: len(wanted.prompt)] == wanted.prompt
    assert served.tokenizer.decode(again.prompt[len(wanted.prompt) :]).startswith(REPLY + "<|observation|>")


def test_replies_of_nothing_are_left_out(served: Served) -> None:
    messages = [*HI, {"role": "assistant", "content": ""}, {"role": "user", "content": "still there?"}]
    assert "hi<|user|>\nstill there?" in prompt(served, messages=messages)
