"""Replies taken apart: at every chunking alike, as `verify.reply` does where a reply is in form, and nothing lost."""

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glmforge.data.chat.conversation import Conversation
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.protocol.arguments import types_of
from glmforge.protocol.reply import Message, Piece, ReplyParser
from glmforge.protocol.request import ReplySettings
from glmforge.verify.reply import argument_value, parse_reply
from helpers.random_conversations import record, record_with_typed_tokens

TOOLS = {
    "f": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "number": {"type": "integer"},
            "maybe": {"type": ["string", "null"]},
            "many": {"type": "array"},
            "odd": {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "number"}]},
            "pick": {"enum": ["1", "2"]},
        },
        "$defs": {"word": {"type": "string"}},
    }
}
HELD, EAGER = ReplySettings(tools=TOOLS), ReplySettings(tools=TOOLS, hold_calls=False)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode_with_special_tokens(text)


def pieces_of(tokenizer: Tokenizer, settings: ReplySettings, chunks: Sequence[Sequence[int]]) -> list[Piece]:
    parser = ReplyParser(tokenizer, settings)
    return [*(piece for chunk in chunks for piece in parser.add(chunk)), *parser.finish()]


def read(tokenizer: Tokenizer, text: str, reply: ReplySettings = HELD) -> Message:
    return Message(pieces_of(tokenizer, reply, [ids_of(tokenizer, text)]))


def said(message: Message) -> tuple:
    return message.reasoning, message.content, message.calls


def call(**arguments: str) -> str:
    inner = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in arguments.items())
    return f"\n<tool_call>f\n{inner}</tool_call>"


def test_all_parts(tokenizer: Tokenizer) -> None:
    text = "\n<think>\nhm, é \n</think>\n Hello\n " + call(text='a "b"\n', number="5") + call()
    for reply in (HELD, EAGER):
        message = read(tokenizer, text, reply)
        arguments = '{"text": "a \\"b\\"\\n", "number": 5}'
        assert said(message) == ("hm, é", "Hello", [("f", arguments, True), ("f", "{}", True)])


@pytest.mark.parametrize(
    ("key", "value", "due"),
    [
        ("text", "5", "5"),
        ("text", '"q"', '"q"'),
        ("number", " 5\n", 5),
        ("number", "five", "five"),
        ("maybe", "null", None),
        ("maybe", '"q"', '"q"'),
        ("maybe", "5", "5"),
        ("many", '[1, {"a": "é"}]', [1, {"a": "é"}]),
        ("odd", "5", 5),
        ("odd", "5 apples", "5 apples"),
        ("pick", "1", "1"),
        ("unknown", "true", True),
        ("unknown", "NaN", "NaN"),
        ("number", "1e999", "1e999"),
        ("number", "9" * 5000, "9" * 5000),
        ("many", "[" * 2000, "[" * 2000),
        ("many", '"\\ud800"', '"\\ud800"'),
        ("text", "", ""),
    ],
)
def test_arguments_have_the_types_of_the_schema(tokenizer: Tokenizer, key: str, value: str, due: object) -> None:
    for reply in (HELD, EAGER):
        ((_, arguments, is_whole),) = read(tokenizer, call(**{key: value}), reply).calls
        assert is_whole
        assert json.loads(arguments) == {key: due}


def test_a_schema_in_a_circle_ends() -> None:
    circle = {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"$ref": "#/$defs/b"}}}
    assert types_of(circle, "a") == set()
    assert types_of({"properties": []}, "a") == types_of({}, "a") == set()


def test_a_value_that_spells_tags_is_a_value(tokenizer: Tokenizer) -> None:
    tags = "</arg_value></tool_call><think><tool_call>"
    begin = ids_of(tokenizer, "\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>")
    ids = [*begin, *tokenizer.encode(tags), *ids_of(tokenizer, "</arg_value>\n</tool_call>")]
    message = Message(pieces_of(tokenizer, HELD, [ids]))
    assert json.loads(message.calls[0][1]) == {"text": tags}
    assert Message(pieces_of(tokenizer, HELD, [tokenizer.encode(tags)])).content == tags


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>get_w",
        "<tool_call>\n</tool_call>",
        "<tool_call>f\n junk</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key></tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key>b<arg_value>1</arg_value></tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key><arg_value>1</tool_call>",
        "<tool_call>f\n<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
        "<tool_call>f\n<arg_key>text</arg_key><arg_value>cut he",
        "so</think>far<arg_key>x",
        "a<think>b</think>c",
    ],
)
def test_what_is_malformed_is_text(tokenizer: Tokenizer, text: str) -> None:
    message = read(tokenizer, text)
    assert (message.content, message.calls) == (text, [])
    eager = read(tokenizer, text, EAGER)
    assert not any(is_whole for _, _, is_whole in eager.calls)
    for _, arguments, _ in eager.calls:
        with pytest.raises(ValueError, match=r"."):
            json.loads(arguments)


def test_a_malformed_call_does_not_spoil_the_next_one(tokenizer: Tokenizer) -> None:
    message = read(tokenizer, "A <tool_call>f\n<arg_key>" + call(text="x") + " B")
    assert message.calls == [("f", '{"text": "x"}', True)]
    assert message.content == "A <tool_call>f\n<arg_key>\n\n B".replace("\n\n B", "\n B")


def test_a_call_ends_a_thought(tokenizer: Tokenizer) -> None:
    message = read(tokenizer, "<think>I call " + call(text="x"))
    assert said(message) == ("I call", "", [("f", '{"text": "x"}', True)])


def test_without_tools_a_call_is_text(tokenizer: Tokenizer) -> None:
    text = call(text="x").strip()
    assert read(tokenizer, text, ReplySettings()).content == text
    inside = read(tokenizer, f"<think>{text}</think>ok", ReplySettings())
    assert (inside.reasoning, inside.content) == (text, "ok")


def test_where_the_prompt_has_begun_the_reply(tokenizer: Tokenizer) -> None:
    assert said(read(tokenizer, "so</think> ok", ReplySettings(in_thought=True))) == ("so", "ok", [])
    assert read(tokenizer, " more ", ReplySettings(in_content=True)).content == " more"
    prefix = tuple(ids_of(tokenizer, "\n<tool_call>f\n"))
    for hold in (True, False):
        reply = ReplySettings(tools=TOOLS, prefix=prefix, hold_calls=hold)
        message = read(tokenizer, "<arg_key>text</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", reply)
        assert message.calls == [("f", '{"text": "x"}', True)]


def test_stop_strings_cut_the_answer_and_not_the_thought(tokenizer: Tokenizer) -> None:
    reply = ReplySettings(stop=("END", "\n\n\n"), tools=TOOLS)
    text = "<think>END of it</think>ok EN ENDS" + call(text="x")
    parser = ReplyParser(tokenizer, reply)
    message = Message([*parser.add(ids_of(tokenizer, text)), *parser.finish()])
    assert said(message) == ("END of it", "ok EN", [])
    assert parser.stopped
    assert read(tokenizer, "EN", reply).content == "EN"
    late = ReplySettings(stop=("a",), min_new_tokens=10**6)
    assert read(tokenizer, "banana", late).content == "banana"


def test_tokens_of_the_thought_are_counted(tokenizer: Tokenizer) -> None:
    parser = ReplyParser(tokenizer, HELD)
    parser.add(ids_of(tokenizer, "\n<think>"))
    parser.add(tokenizer.encode("abc"))
    assert parser.in_thought
    parser.add(ids_of(tokenizer, "</think>answer"))
    assert parser.num_reasoning == 2 + len(tokenizer.encode("abc"))


def test_as_the_verifier_reads_it(tokenizer: Tokenizer) -> None:
    """Random conversations, rendered by the template; both readers, each message."""
    draw, seen = random.Random(1), 0
    for _ in range(60):
        made = record(draw)
        for number, said_before in enumerate(made["messages"]):
            if said_before["role"] != "assistant":
                continue
            conversation = Conversation.from_messages(made["messages"][: number + 1], made.get("tools"))
            ids = tokenizer.apply_chat_template(conversation.messages, conversation.tools)
            start = len(ids) - ids[::-1].index(tokenizer.special_id("<|assistant|>"))
            due = parse_reply(tokenizer.decode(ids[start:]))
            for hold in (True, False):
                message = Message(pieces_of(tokenizer, ReplySettings(tools={"": {}}, hold_calls=hold), [ids[start:]]))
                assert (message.reasoning, message.content) == (due.reasoning, due.content)
                assert [name for name, _, _ in message.calls] == [one.name for one in due.tool_calls]
                for (_, arguments, is_whole), one in zip(message.calls, due.tool_calls, strict=True):
                    assert is_whole
                    assert json.loads(arguments) == {key: argument_value(text) for key, text in one.arguments.items()}
            seen += len(due.tool_calls)
    assert seen > 10


def test_typed_tokens_are_text(tokenizer: Tokenizer) -> None:
    """The last message of conversations whose texts spell control tokens comes back as it was."""
    for seed in range(40):
        made, _ = record_with_typed_tokens(seed)
        conversation = Conversation.from_messages(made["messages"], made.get("tools"))
        ids = tokenizer.apply_chat_template(conversation.messages, conversation.tools)
        start = len(ids) - ids[::-1].index(tokenizer.special_id("<|assistant|>"))
        message = Message(pieces_of(tokenizer, HELD, [ids[start:]]))
        last = conversation.messages[-1]
        assert message.content == last["content"].strip()
        assert message.reasoning == last.get("reasoning_content", "").strip()


PARTS = st.lists(
    st.sampled_from(
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>"),
            *(
                "</arg_value>",
                "f\n",
                "g",
                "text",
                "number",
                "\n",
                " ",
                "é中🇩🇪",
                "END",
                "EN",
                "x y",
                '"',
                "5",
                "/nothink",
            ),
            *(call(text="a b", number="1"), "<think>why</think>", "<|assistant|>", "<tool_response>"),
        ]
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=PARTS, broken=st.lists(st.integers(0, 255), max_size=3), data=st.data())
def test_every_chunking_gives_the_same(
    tokenizer: Tokenizer, parts: list[str], broken: list[int], data: st.DataObject
) -> None:
    """Whole, token by token, and at every split; bytes that are no character, too. And no text is lost."""
    ids = [*broken, *ids_of(tokenizer, "".join(parts))]
    stop = data.draw(st.sampled_from([(), ("END",), ("x", "\n ")]))
    for hold in (True, False):
        reply = ReplySettings(
            tools=data.draw(st.sampled_from([TOOLS, {}])),
            stop=stop,
            hold_calls=hold,
            in_thought=data.draw(st.booleans()),
        )
        due = said(Message(pieces_of(tokenizer, reply, [ids])))
        assert said(Message(pieces_of(tokenizer, reply, [[token] for token in ids]))) == due
        for place in range(len(ids)):
            assert said(Message(pieces_of(tokenizer, reply, [ids[:place], ids[place:]]))) == due
        if not reply.tools and not stop:
            everything = "".join(due[:2])
            for tag in ("<think>", "</think>"):
                everything = everything.replace(tag, "")
            whole = tokenizer.decode(ids).replace("<think>", "").replace("</think>", "")
            assert "".join(everything.split()) == "".join(whole.split())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=PARTS)
def test_calls_that_are_told_of_are_json(tokenizer: Tokenizer, parts: list[str]) -> None:
    ids = ids_of(tokenizer, "".join(parts))
    held, eager = (Message(pieces_of(tokenizer, reply, [[token] for token in ids])) for reply in (HELD, EAGER))
    assert all(is_whole for _, _, is_whole in held.calls)
    assert [one for one in eager.calls if one[2]] == held.calls
    for _, arguments, is_whole in eager.calls:
        if is_whole:
            assert isinstance(json.loads(arguments), dict)
        else:
            with pytest.raises(ValueError, match=r"."):
                json.loads(arguments)
