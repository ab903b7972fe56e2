"""The template and the loss mask against a second template, written independently from the format's description.

It is rendered by transformers, on made-up conversations of every rule and on real instruction sets where these are at
hand: all of their records among the tests of `make test-distributed`.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.encode import EncodedConversation, encode
from glmforge.data.chat.read import read_records
from glmforge.data.chat.records import conversation_of
from glmforge.data.chat_template.template import render
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from helpers.random_conversations import record_with_typed_tokens
from helpers.tiny_data import TinyData

transformers = pytest.importorskip("transformers")

REAL = Path(__file__).parents[4] / "shared" / "data" / "chat"

SECOND_TEMPLATE = """
{%- macro words(c) -%}
{%- for p in ([c] if c is string else c or []) %}{{ p if p is string else p['text'] }}{% endfor -%}
{%- endmacro -%}
{%- set silent = enable_thinking is defined and enable_thinking == false -%}
{%- set seen = namespace(asked=-1) -%}
{%- for i in range(messages | length) if messages[i]['role'] == 'user' %}{% set seen.asked = i %}{% endfor -%}
[gMASK]<sop>
{%- if tools %}<|system|>
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{{ tools | map('tojson') | join('\\n') }}
</tools>

For each function call, output the function name and arguments within the following XML format:
<tool_call>{function-name}
<arg_key>{arg-key-1}</arg_key>
<arg_value>{arg-value-1}</arg_value>
<arg_key>{arg-key-2}</arg_key>
<arg_value>{arg-value-2}</arg_value>
...
</tool_call>
{%- endif -%}
{%- for i in range(messages | length) -%}
{%- set m = messages[i] -%}
{%- if m['role'] in ('system', 'user') -%}
{{ '<|' + m['role'] + '|>\\n' + words(m['content']) + ('/nothink' if silent and m['role'] == 'user' else '') }}
{%- elif m['role'] == 'tool' and m['content'] is not string and m['content'][0]['type'] != 'text' -%}
<|observation|>
{%- for one in m['content'] -%}
{{ '\\n<tool_response>\\n' ~ (one['output'] if one is mapping else one) ~ '\\n</tool_response>' }}
{%- endfor -%}
{%- elif m['role'] == 'tool' -%}
{{ ('<|observation|>' if messages[i - 1]['role'] != 'tool' else '') + '\\n<tool_response>\\n' }}
{{- words(m['content']) + '\\n</tool_response>' }}
{%- else -%}
{%- set all = words(m['content']) -%}
{%- set thought = m['reasoning_content'] if m['reasoning_content'] is string
    else (all.partition('</think>')[0].rpartition('<think>')[2] if '</think>' in all else '') -%}
{%- set said = (all if m['reasoning_content'] is string else all.rpartition('</think>')[2]) | trim -%}
{{ '<|assistant|>\\n<think>' + (thought | trim if i > seen.asked else '') + '</think>' }}
{{- '\\n' + said if said else '' }}
{%- for c in m['tool_calls'] or [] -%}
{%- set f = c['function'] or c -%}
{{ '\\n<tool_call>' + f['name'] + '\\n' }}
{%- for k in f['arguments'] -%}
{%- set v = f['arguments'][k] -%}
{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' + (v if v is string else v | tojson) + '</arg_value>\\n' }}
{%- endfor -%}
{{ '</tool_call>' }}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>' + ('\\n<think></think>' if silent else '') }}{% endif -%}
"""

USER = {"role": "user", "content": "U1"}
SYSTEM = {"role": "system", "content": "SYS\n"}
THOUGHT = {"role": "assistant", "content": " A2 ", "reasoning_content": "R2\n"}
INLINE = {"role": "assistant", "content": "<think>R1</think>\nA1"}
CALLS = [
    {"type": "function", "function": {"name": "f", "arguments": {"a": "x", "b": [1, {"é": None}], "c": 1.5}}},
    {"type": "function", "function": {"name": "g", "arguments": {}}},
]
CALL = {"role": "assistant", "content": "A2", "reasoning_content": "R2", "tool_calls": CALLS}
RESULT = {"role": "tool", "content": 'T <tag> & "quote"'}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "größer < kleiner"}}, {"name": "g"}]
CASES = {
    "question": [USER],
    "system": [SYSTEM, USER],
    "history loses its reasoning": [USER, INLINE, USER, THOUGHT, USER],
    "current turn": [SYSTEM, USER, THOUGHT],
    "call": [USER, CALL],
    "results share an observation": [USER, CALL, RESULT, RESULT],
    "agent": [USER, CALL, RESULT, RESULT, CALL, RESULT, THOUGHT, USER, INLINE],
    "no thought": [USER, {"role": "assistant", "content": "A1"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "U"}, {"type": "text", "text": "1"}]}, THOUGHT],
}


@pytest.fixture(scope="module")
def ours(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


@pytest.fixture(scope="module")
def theirs(tiny_data: TinyData) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny_data.tokenizer)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_every_rule(theirs: Any, case: str, prompt: bool, thinking: bool, tools: Any) -> None:
    text = render(CASES[case], tools, add_generation_prompt=prompt, thinking=thinking)
    assert text == _second(theirs, CASES[case], tools, thinking=thinking, add_generation_prompt=prompt)


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.full)])
def test_records_of_real_sets(ours: Tokenizer, theirs: Any, stride: int) -> None:
    """Text, ids and weights of each token of 3,399 records (or every 17th), with thinking and without."""
    files = sorted(REAL.glob("*.json*"))
    if not files:
        pytest.skip(f"no instruction sets in {REAL}")
    number = -1
    for number, raw in enumerate(read_records(files)):
        record = dict(raw.parse())
        messages, tools = _openai(record)
        if "chosen" in record:
            record["conversations"] = [*record["conversations"], record["chosen"]]
        conversation = conversation_of({f: record[f] for f in record if f not in ("chosen", "rejected", "label")})
        for thinking in ("on", "off") if number % stride == 0 else ():
            (document,) = encode(conversation, ours, ChatConfig(thinking=thinking))
            text = _second(theirs, messages, tools, thinking=thinking == "on")
            if any(token in str(messages) for token in SPECIAL_TOKENS):  # transformers takes it for the template's
                assert ours.decode(document.ids.tolist()) == text + "<|user|>"
            else:
                _compare(document, text, thinking, theirs)
    assert number + 1 == sum(map(_count, files))


@pytest.mark.parametrize("thinking", [True, False])
def test_control_tokens_that_are_typed_are_text(ours: Tokenizer, theirs: Any, thinking: bool) -> None:
    """200 conversations: the same control tokens in the same order as where words stand for the typed ones, and the
    text that transformers renders."""
    for seed in range(100 * thinking, 100 + 100 * thinking):
        typed, plain = record_with_typed_tokens(seed)
        ids = ours.apply_chat_template(typed["messages"], typed.get("tools"), True, thinking)
        expected = ours.apply_chat_template(plain["messages"], plain.get("tools"), True, thinking)
        assert _control(ids, ours) == _control(expected, ours), seed
        text = _second(theirs, typed["messages"], typed.get("tools"), thinking=thinking, add_generation_prompt=True)
        assert ours.decode(ids) == text, seed


def _control(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    return [token for token in ids if token >= tokenizer.end_of_text_id]


def _compare(document: EncodedConversation, text: str, thinking: str, theirs: Any) -> None:
    encoded = theirs(text + "<|user|>", add_special_tokens=False, return_offsets_mapping=True)
    assert document.ids.tolist() == encoded["input_ids"]
    learnt = np.zeros(len(text) + 8, bool)
    for start, stop in _learnt_spans(text + "<|user|>", thinking == "on"):
        learnt[start:stop] = True
    starts = [start for start, _ in encoded["offset_mapping"]]
    assert (document.weights == learnt[starts]).all()


def _second(theirs: Any, messages: list[dict[str, Any]], tools: Any, *, thinking: bool, **options: Any) -> str:
    return theirs.apply_chat_template(
        messages, tools=tools, chat_template=SECOND_TEMPLATE, tokenize=False, enable_thinking=thinking, **options
    )


def _learnt_spans(text: str, thinking: bool) -> Iterator[tuple[int, int]]:
    """From the opening of each turn, or the thought that the prompt gives, through the role token that ends it."""
    given = "" if thinking else "\n<think></think>"
    pattern = re.compile(rf"<\|assistant\|>{given}(.*?(?:<\|user\|>|<\|observation\|>))", re.DOTALL)
    return (found.span(1) for found in pattern.finditer(text))


def _openai(record: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """A record as messages and tools, by a second reading of the kinds that the sets have."""
    if "messages" in record:
        parts = [[m["content"]] if isinstance(m["content"], str) else m["content"] for m in record["messages"]]
        texts = ["".join(p if isinstance(p, str) else p["value"] for p in part) for part in parts]
        return [{"role": m["role"], "content": t} for m, t in zip(record["messages"], texts, strict=True)], None
    if "instruction" in record:
        question = record["instruction"] + ("\n" + record["input"] if record["input"] else "")
        return [{"role": "user", "content": question}, {"role": "assistant", "content": record["output"]}], None
    messages = []
    for turn in [*record["conversations"], *([record["chosen"]] if "chosen" in record else [])]:
        role = {"human": "user", "gpt": "assistant", "observation": "tool"}.get(turn["from"], turn["from"])
        if role == "function_call":
            call = json.loads(turn["value"])
            messages.append({"role": "assistant", "content": "", "tool_calls": [{"function": call}]})
        else:
            messages.append({"role": role, "content": turn["value"]})
    return messages, json.loads(record.get("tools", "null")) or None


def _count(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    return len(text.splitlines()) if path.suffix == ".jsonl" else len(json.loads(text))
