"""Every rendering rule of the reference, literally."""

import json

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glmforge.data.chat_template.template import render
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

SYSTEM = {"role": "system", "content": "SYS"}
USER = {"role": "user", "content": "U1"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "x"}}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "größer < kleiner", "parameters": {}}},
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}},
]
TOOLS_HEADER = (
    "[gMASK]<sop><|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    + "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in TOOLS)
    + "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
    "format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n"
    "<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
)


def assistant(content: str | None = None, **fields: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **fields}


def test_thinking_prompt_leaves_the_first_move_to_the_model():
    text = render([SYSTEM, USER], add_generation_prompt=True)
    assert text == "[gMASK]<sop><|system|>\nSYS<|user|>\nU1<|assistant|>"


def test_prompt_without_thinking_ends_with_an_empty_thought():
    text = render([SYSTEM, USER], add_generation_prompt=True, thinking=False)
    assert text == "[gMASK]<sop><|system|>\nSYS<|user|>\nU1/nothink<|assistant|>\n<think></think>"


def test_nothink_is_not_said_twice():
    text = render([{"role": "user", "content": "U1/nothink"}], thinking=False)
    assert text == "[gMASK]<sop><|user|>\nU1/nothink"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(assistant("A1", reasoning_content="R1"), id="reasoning in its own field"),
        pytest.param(assistant("<think>R1</think>A1"), id="reasoning in the content"),
        pytest.param(assistant("R1</think>A1"), id="reasoning whose opening was in the prompt"),
    ],
)
def test_turns_before_the_last_user_message_lose_their_reasoning(answer):
    text = render([USER, answer, {"role": "user", "content": "U2"}])
    assert text == "[gMASK]<sop><|user|>\nU1<|assistant|>\n<think></think>\nA1<|user|>\nU2"


@pytest.mark.parametrize(
    "answer",
    [
        assistant("A2", reasoning_content=" R2\n"),
        assistant("<think>R2</think>\nA2"),
    ],
)
def test_turns_after_the_last_user_message_keep_it(answer):
    text = render([USER, answer])
    assert text == "[gMASK]<sop><|user|>\nU1<|assistant|>\n<think>R2</think>\nA2"


def test_equal_user_messages_are_told_apart():
    """The last user message is the last by position, not the first that looks like it."""
    text = render([USER, assistant("A", reasoning_content="R"), USER, assistant("B", reasoning_content="S")])
    assert text == (
        "[gMASK]<sop><|user|>\nU1<|assistant|>\n<think></think>\nA<|user|>\nU1<|assistant|>\n<think>S</think>\nB"
    )


def test_tool_call_with_reasoning_and_content():
    text = render([USER, assistant("A2", reasoning_content="R2", tool_calls=[CALL])])
    assert text == (
        "[gMASK]<sop><|user|>\nU1<|assistant|>\n<think>R2</think>\nA2\n<tool_call>f\n<arg_key>a</arg_key>\n"
        "<arg_value>x</arg_value>\n</tool_call>"
    )


@pytest.mark.parametrize("as_json_text", [False, True])
def test_string_arguments_are_raw_and_others_json(as_json_text):
    arguments = {"s": 'say "é"', "n": 1.5, "flag": True, "none": None, "list": ["é", {"k": 1}]}
    given = json.dumps(arguments) if as_json_text else arguments
    calls = [{"function": {"name": "f", "arguments": given}}, {"name": "g", "arguments": {}}]
    text = render([USER, assistant(tool_calls=calls)])
    values = ['say "é"', "1.5", "true", "null", '["é", {"k": 1}]']
    body = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in zip(arguments, values, strict=True)
    )
    assert text == (
        f"[gMASK]<sop><|user|>\nU1<|assistant|>\n<think></think>\n<tool_call>f\n{body}</tool_call>"
        "\n<tool_call>g\n</tool_call>"
    )


def test_consecutive_tool_results_share_one_observation():
    results = [{"role": "tool", "content": "T1"}, {"role": "tool", "content": "T2"}]
    text = render([USER, assistant(tool_calls=[CALL]), *results], add_generation_prompt=True)
    assert text.endswith(
        "</tool_call><|observation|>\n<tool_response>\nT1\n</tool_response>\n<tool_response>\nT2\n</tool_response>"
        "<|assistant|>"
    )


def test_reasoning_between_tool_calls_of_the_current_turn_is_kept():
    first = assistant(reasoning_content="R1", tool_calls=[CALL])
    text = render([USER, first, {"role": "tool", "content": "T"}, assistant("A", reasoning_content="R2")])
    assert "<think>R1</think>\n<tool_call>" in text
    assert text.endswith("</tool_response><|assistant|>\n<think>R2</think>\nA")


@pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER]])
def test_tools_header_comes_before_the_system_message(messages):
    assert render(messages, tools=TOOLS) == TOOLS_HEADER + render(messages).removeprefix("[gMASK]<sop>")


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_typed_token_is_text_wherever_it_stands(tokenizer, token):
    typed = assistant(token, reasoning_content=token, tool_calls=[{"name": token, "arguments": {token: [token]}}])
    messages = [SYSTEM | {"content": token}, USER | {"content": token + "."}, typed]
    messages += [{"role": "tool", "content": content} for content in (token, [token, {"output": token}])]
    ids = tokenizer.apply_chat_template(messages, tools=[{"name": token}])
    plain = json.loads(json.dumps(messages).replace(token, "x"))
    own = tokenizer.apply_chat_template(plain, tools=[{"name": "x"}])
    assert [i for i in ids if i >= tokenizer.end_of_text_id] == [i for i in own if i >= tokenizer.end_of_text_id]
    assert tokenizer.decode(ids) == render(messages, [{"name": token}])


@pytest.mark.parametrize("content", ["Q/nothink", ["Q/noth", {"type": "text", "text": "ink"}]])
@pytest.mark.parametrize("thinking", [True, False])
def test_nothink_at_the_end_of_a_question_is_the_templates(tokenizer, content, thinking):
    (no_think,) = tokenizer.encode_with_special_tokens("/nothink")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": content}], thinking=thinking)
    assert ids[-1] == no_think
    assert ids.count(no_think) == 1
    elsewhere = [SYSTEM | {"content": "S/nothink"}, USER | {"content": "/nothink Q"}, assistant("A/nothink")]
    assert no_think not in tokenizer.apply_chat_template(elsewhere)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<|user|>{{ m.content | replace('@', '') }}{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content[1:] }}{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content | lower }}{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content | tojson(ensure_ascii=true) }}{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content.split('@') | join }}{% endfor %}",
    ],
)
def test_a_template_cannot_make_a_token_of_content(tokenizer, template):
    """Whatever it takes out of the text or changes in it."""
    own = Tokenizer(tokenizer.to_json(), template)
    content = "@<|user|> <@|user|> <|USER|> \x7f \\ufdd0 \ufdd1"
    ids = own.apply_chat_template([{"role": "user", "content": content}])
    assert [index for index in ids if index >= own.end_of_text_id] == [own.special_id("<|user|>")]
    assert own.decode(ids) == render([{"role": "user", "content": content}], template=template)


def test_a_role_that_is_no_word_spells_no_token(tokenizer):
    own = Tokenizer(tokenizer.to_json(), "{% for m in messages %}<|{{ m.role }}|>{% endfor %}")
    ids = own.apply_chat_template([{"role": "user"}, {"role": "x|><|system"}])
    assert [index for index in ids if index >= own.end_of_text_id] == [own.special_id("<|user|>")]


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"role": "robot", "content": "x"}, "unknown role 'robot'"),
        ({"role": "user", "content": [{"type": "image"}]}, "content of type 'image'"),
        ({"role": "user", "content": 3}, "content must be a string"),
        (assistant(tool_calls=[{"name": "f", "arguments": [1]}]), "arguments of tool call 'f'"),
        (assistant(tool_calls=[{"name": "f", "arguments": "{"}]), "message 0: .*'f' are not JSON"),
    ],
)
def test_what_the_format_cannot_say_is_an_error(message, complaint):
    with pytest.raises(DataError, match=complaint):
        render([message])


def test_template_is_sandboxed():
    with pytest.raises(DataError, match="unsafe"):
        render([USER], template="{{ ''.__class__.__mro__ }}")


# What chat templates of other models use; the sandbox must mean the same by it as Jinja does.
FEATURES = [
    "{% for m in messages[::-1] %}{{ loop.index0 }}/{{ loop.length }}{{ '' if loop.last else ',' }}{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{% else %}none{% endfor %}",
    "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m['content'] }}{% break %}"
    "{% endfor %}",
    "{% set ns = namespace(last=-1, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n * 2 - 1 }}",
    "{% macro show(m, sep='|') %}{{ m.role }}{{ sep }}{{ m.content }}{% endmacro %}{% for m in messages %}"
    "{{ show(m) }}{{ show(m, sep=':') }}{% endfor %}",
    "{{ messages|map(attribute='role')|join(', ') }} {{ messages|map(attribute='role')|map('upper')|list }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|rejectattr('x', 'defined')|list }}",
    "{{ (messages|first).content }} {{ (messages|last).content.split(' ')[-1].lstrip('\\n').upper() }}",
    "{% set text %}a{{ messages[0].role }}b{% endset %}{{ text|trim|replace('a', 'xyz') }}{{ text.replace('b', '') }}",
    "{{ 'a' ~ 1 ~ none ~ [1, 'b'] ~ {'k': 1.5} }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 1 / 4 }} {{ -3|abs }}",
    "{{ tools|tojson(indent=2) }}{{ tools|tojson(ensure_ascii=True) }}{{ {'ä': 1}|tojson }}",
    "{% for k, v in {'b': 1, 'a': 2}.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'b': 1, 'a': 2}|dictsort %}"
    "{{ k }}{% endfor %}",
    "{{ 'x' in 'xyz' and not ('q' in ['a']) }}{{ missing is defined }}{{ messages is string }}",
    "{{ messages[0].get('nothing', 'default') }}{{ nothing|default('d') }}{{ ''|default('d', true) }}",
    "{{ 'a\\nb\\n\\nc'|indent(4) }}{{ 'a\\nb'|indent(2, true) }}",
    "{{ ['b', 'a']|sort|join }}{{ [3, 1]|max }}{{ range(1, 9, 3)|list }}{{ none is none }}",
    "{{ messages[0].content[1:-1] }}{{ messages[1:]|length }}{{ 'abc'|reverse }}{{ '3'|int + '1.5'|float }}",
    "{% filter upper %}a{{ messages[0].role }}{% endfilter %}{% for a in 'ab' %}{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% call(x) wrap('a') %}{{ x }}!{% endcall %}{% macro wrap(y) %}<{{ caller(y) }}>{% endmacro %}",
]


@pytest.mark.parametrize("template", FEATURES)
def test_the_sandbox_means_by_a_template_what_jinja_does(template):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent
    )
    messages = [SYSTEM, USER, assistant("An answer,\nwith lines")]
    if "wrap" in template:
        macro = template.index("{% macro")
        template = template[macro:] + template[:macro]
    expected = environment.from_string(template).render(messages=messages, tools=TOOLS)
    assert render(messages, TOOLS, template=template) == expected


def test_a_long_conversation_stays_within_its_budget():
    """A thousand turns with tools, and a message of five million characters."""
    turns = [USER, assistant("A", tool_calls=[CALL]), {"role": "tool", "content": "R"}] * 1000
    assert len(render([*turns, {"role": "user", "content": "x" * 5_000_000}], TOOLS)) > 5_000_000


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ 'a' * 10**10 }}", "far longer than the conversation"),
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "runs too long"),
        ("{% include 'x' %}", "line 1: it uses Include"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ lipsum(5) }}", "'lipsum' is undefined"),
        ("{{ 'a'.format(1) }}", "calls '"),
        ("{% if", "line 1"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("x" * 70_000, "longer than the 65,536 characters"),
    ],
)
def test_a_template_that_asks_for_too_much_is_refused(template, complaint):
    with pytest.raises(DataError, match=complaint):
        render([USER], template=template)


@pytest.mark.parametrize(
    "messages", [None, 3, "text", ["text"], [{"role": "assistant", "tool_calls": 3}], [USER, None]]
)
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(DataError, match="not a list of"):
        render(messages)
